"""The few words in which the tests of the engine are written."""

from carom.brokers.embedded.engine import Engine
from carom.core.message import Message
from carom.core.topology import Queue, Topology, arguments

NOW = 1_767_225_600_000


def classic(name, **options):
    return Queue(name, arguments=arguments({"x-" + key.replace("_", "-"): value for key, value in options.items()}))


def engine_with(*queues, exchanges=(), bindings=()):
    engine = Engine()
    engine.declare(Topology(exchanges, queues, bindings), NOW)
    return engine


def send(engine, key, *bodies, now=NOW, exchange="", **properties):
    messages = [Message(body=str(body).encode(), exchange=exchange, routing_key=key, **properties) for body in bodies]
    return [engine.publish(message, now) for message in messages]


def bodies(engine, queue):
    return [message.body.decode() for message in engine.contents(queue)]


def take(engine, queue, session="me", now=NOW):
    return engine.get(session, queue, now)


def drained(engine):
    handed, engine.handed = engine.handed, []
    return [(one.consumer, one.message.body.decode()) for one in handed]


def deaths(message):
    return [(event["queue"], event["reason"], event["count"]) for event in message.headers["x-death"]]
