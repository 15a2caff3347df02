"""How the tests of the linter say what a server has."""

from carom.core.lint import Inventory, Policy, Queue, Vhost, review, version_of
from carom.core.lint.seen import Binding, Exchange, Facts


def queue(name="work", *, durable=True, auto_delete=False, exclusive=False, facts=None, **arguments):
    named = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    return Queue(name, durable, auto_delete, exclusive, named, None if facts is None else Facts(*facts))


def quorum(name="work", **options):
    return queue(name, queue_type="quorum", **options)


def safe(exchange, key=None):
    there = {"dead_letter_exchange": exchange, "dead_letter_strategy": "at-least-once", "overflow": "reject-publish"}
    return there if key is None else {**there, "dead_letter_routing_key": key}


def exchange(name="dead", kind="direct", **arguments):
    return Exchange(name, kind, arguments={key.replace("_", "-"): value for key, value in arguments.items()})


def bound(source, target, key="", to="queue"):
    return Binding(source, target, key, to)


def policy(name="p", pattern=".*", priority=0, apply_to="all", *, operator=False, **definition):
    there = {key.replace("_", "-"): value for key, value in definition.items()}
    return Policy(name, pattern, there, priority, apply_to, operator)


def server(*things, version="3.13.1", flags=None):
    """Return a server with one vhost that has these things."""
    kinds = (Exchange, Queue, Binding, Policy)
    parts = [tuple(thing for thing in things if isinstance(thing, kind)) for kind in kinds]
    return Inventory(version_of(version), (Vhost("/", *parts),), flags or {})


def codes(*things, version="3.13.1", flags=None, **options):
    """Return the codes of what is found, with the level as a mark: a note in brackets."""
    found = review(server(*things, version=version, flags=flags), **options)
    return {f"({one.code})" if one.level.name == "NOTE" else one.code for one in found}


def subjects(code, *things, version="3.13.1", flags=None, **options):
    """Return what findings of one code are about."""
    there = review(server(*things, version=version, flags=flags), **options)
    return {one.subject for one in there if one.code == code}
