"""Declaring on a real RabbitMQ: what differs is named with both values and what to do, and nothing is touched."""

import logging
from dataclasses import replace

import pytest

from brokers.rabbitmq.rabbit_stage import admin, at, declared, drained, fresh, opened, queue, to
from carom.core.effects import Confirmed, Nacked
from carom.core.lint import Needs
from carom.core.topology import Binding, Exchange, Topology
from carom.errors import BrokerError, NotPermitted, TopologyMismatch
from carom.ports import Depth

PASSWORD = "p"  # noqa: S105 - of users that live as long as a test


async def differences(broker, *things, mode="apply"):
    exchanges = [thing for thing in things if isinstance(thing, Exchange)]
    queues = [thing for thing in things if not isinstance(thing, Exchange)]
    with pytest.raises(TopologyMismatch) as caught:
        await broker.declare(declared(*queues, exchanges=exchanges), mode)
    return caught.value.differences


@pytest.mark.parametrize("mode", ["apply", "verify"])
async def test_every_argument_that_differs_is_named_with_both_values(rabbitmq_url, mode):
    async with opened(rabbitmq_url) as broker:
        there = queue(message_ttl=77, dead_letter_exchange="it's", single_active_consumer=True, max_length=5)
        await broker.declare(declared(there))
        wanted = replace(
            queue(message_ttl=78, dead_letter_exchange="other", overflow="reject-publish"), name=there.name
        )
        lines = await differences(broker, wanted, mode=mode)
        for words in (
            "x-message-ttl 77, and 78 is wanted",
            "x-dead-letter-exchange it's, and other is wanted",
            "x-max-length 5, and not set is wanted",
            "x-overflow not set, and reject-publish is wanted",
            "x-single-active-consumer true, and not set is wanted",
        ):
            assert [line for line in lines if words in line and there.name in line], words
        assert len(lines) == 5
        await broker.declare(declared(there))


async def test_a_difference_says_the_command_to_run(rabbitmq_url):
    vhost = rabbitmq_url.rpartition("/")[2]
    async with opened(rabbitmq_url) as broker:
        jobs, orders = queue(max_length=5), Exchange(fresh("it's"), "topic", alternate="a")
        await broker.declare(declared(jobs, exchanges=[orders]))
        lines = await differences(
            broker, queue(), replace(jobs, arguments=(("x-queue-type", "quorum"),)), replace(orders, kind="direct")
        )
        assert lines[0].startswith(f"exchange {orders.name!r} has type topic, and direct is wanted: ")
        assert f"rabbitmqadmin -V {vhost} delete exchange name='test.it'\"'\"'s." in lines[0]
        assert f"when it is empty, remove it with 'rabbitmqctl -p {vhost} delete_queue {jobs.name}'" in lines[1]


async def test_every_property_of_an_exchange_is_compared(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        orders = Exchange(fresh("orders"), "topic", alternate="a")
        await broker.declare(declared(exchanges=[orders]))
        other = Exchange(orders.name, "fanout", durable=False, internal=True, alternate="b")
        lines = await differences(broker, other)
        said = " ".join(lines)
        assert len(lines) == 4
        for words in ("type topic, and fanout", "durable true, and false", "internal false, and true", "a, and b is"):
            assert words in said
        assert "not set is wanted" in (await differences(broker, replace(orders, alternate=None)))[0]


async def test_what_this_server_does_not_take_is_quoted(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        lines = await differences(broker, queue(kind="classic", delivery_limit=3), queue(message_ttl=-1))
        assert "invalid arg 'x-delivery-limit'" in lines[0]
        assert "x-message-ttl" in lines[1]


async def test_a_queue_that_belongs_to_one_connection_is_told_as_such(rabbitmq_url):
    async with opened(rabbitmq_url) as broker, admin(rabbitmq_url) as channel:
        name = fresh("exclusive")
        channel.queue_declare(name, exclusive=True)
        theirs = replace(queue(kind="classic"), name=name)
        for mode in ("apply", "verify"):
            [line] = await differences(broker, theirs, mode=mode)
            assert f"queue {name!r} belongs to one other connection alone" in line
        with pytest.raises(BrokerError, match="RESOURCE_LOCKED"):
            await broker.depths([name])
        with pytest.raises(BrokerError, match="RESOURCE_LOCKED"):
            await broker.consume(name, print, prefetch=1, ended=print)


async def test_a_binding_to_nothing_is_named(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        orders = Exchange(fresh("orders"), "topic")
        with pytest.raises(BrokerError, match=f"queue 'test.nobody' cannot be bound to exchange '{orders.name}'"):
            await broker.declare(declared(exchanges=[orders], bindings=[Binding(orders.name, "test.nobody", "k")]))


async def test_many_queues_need_one_channel(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        queues = [queue(kind="classic") for _ in range(50)]
        numbers = []
        make = broker._in.connection.channel
        broker._in.connection.channel = lambda **options: numbers.append(1) or make(**options)
        await broker.declare(declared(*queues))
        await broker.declare(declared(*queues), "verify")
        assert len(await broker.depths([one.name for one in queues])) == 50
        assert len(numbers) == 3


@pytest.fixture
def users(rabbitmq):
    """Make users with permissions in the vhost of the run."""
    management, vhost = rabbitmq.management, rabbitmq.vhost
    made = []

    def make(**permissions):
        user = fresh("user")
        made.append(user)
        management.ask("PUT", "users", user, body={"password": PASSWORD, "tags": ""})
        body = {"configure": "^$", "write": "^$", "read": "^$", **permissions}
        management.ask("PUT", "permissions", vhost, user, body=body)
        return at(rabbitmq.url, user=user, password=PASSWORD)

    yield make
    for user in made:
        management.ask("DELETE", "users", user)


async def test_a_missing_permission_names_the_object(rabbitmq_url, users):
    jobs, orders = queue("jobs"), Exchange(fresh("orders"), "topic")
    async with opened(users()) as nobody:
        with pytest.raises(NotPermitted, match=f"queue '{jobs.name}' may not be declared by this user"):
            await nobody.declare(declared(jobs))
        with pytest.raises(NotPermitted, match=f"exchange '{orders.name}' may not be declared"):
            await nobody.declare(declared(exchanges=[orders]))
        async with opened(rabbitmq_url) as owner:
            await owner.declare(declared(jobs, exchanges=[orders]))
        for ask in (nobody.consume(jobs.name, print, prefetch=1, ended=print), nobody.get(jobs.name)):
            with pytest.raises(NotPermitted, match=f"{jobs.name}.*set_permissions"):
                await ask
        results = await nobody.publish([to(jobs), to(jobs, exchange=orders.name)])
        assert [type(result) for result in results] == [Nacked, Nacked]
        assert "ACCESS_REFUSED" in results[0].why
    async with opened(users(configure=".*", read="^test[.]orders")) as half:
        binding = Binding(orders.name, jobs.name, "k")
        with pytest.raises(NotPermitted, match=f"queue '{jobs.name}' cannot be bound to exchange '{orders.name}'"):
            await half.declare(declared(jobs, exchanges=[orders], bindings=[binding]))


async def test_what_a_user_may_do_is_found_out_without_doing_it(rabbitmq_url, users):
    jobs, orders = queue("jobs"), Exchange(fresh("orders"), "topic")
    topology = Topology((orders,), (jobs,), (Binding(orders.name, jobs.name, "#"),))
    needs = Needs(writes=(orders.name, "", "test.no-such-exchange"), reads=(jobs.name, "test.no-such-queue"))
    async with opened(rabbitmq_url) as owner:
        await owner.declare(topology)
        assert (await owner.inspect([jobs.name], needs)).denied == Needs()
        users_and_denied = {
            users(): needs,
            users(write="^test[.]"): Needs(writes=("",), reads=needs.reads),
            users(read="^test[.]jobs", write="^amq[.]default$"): Needs(
                writes=(orders.name, "test.no-such-exchange"), reads=("test.no-such-queue",)
            ),
        }
        for url, denied in users_and_denied.items():
            async with opened(url) as broker:
                assert (await broker.inspect([jobs.name], needs)).denied == denied
        assert (await owner.depths([jobs.name]))[jobs.name] == Depth(0, None, 0)


async def test_least_privilege_is_enough_to_publish_and_to_consume(rabbitmq_url, users, caplog):
    jobs, orders = queue("jobs"), Exchange(fresh("orders"), "topic")
    topology = Topology((orders,), (jobs,), (Binding(orders.name, jobs.name, "#"),))
    async with opened(rabbitmq_url) as owner:
        await owner.declare(topology)
    publisher, consumer = users(write="^test[.]orders"), users(read="^test[.]jobs")
    async with opened(publisher) as sender, opened(consumer) as receiver:
        for broker in (sender, receiver):
            await broker.declare(topology, "ignore")
            with caplog.at_level(logging.WARNING, "carom.rabbitmq"):
                await broker.declare(topology, "verify")
            assert f"queue '{jobs.name}' exists; this user may not compare its arguments" in caplog.text
            caplog.clear()
            [line] = await differences(broker, queue("missing"), mode="verify")
            assert "is missing" in line
        assert await sender.publish([to("any", exchange=orders.name)] * 3) == [Confirmed()] * 3
        assert len(await drained(receiver, jobs.name)) == 3
