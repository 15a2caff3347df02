"""Claims about async-worker's layout and its wire, where they are its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from layout_stage import ORDER

from carom.core import message as names
from carom.core.freezing import freeze
from carom.core.nippy import Keyword, thaw
from carom.core.outcome import Failed
from carom.core.retry import RetryPolicy
from carom.core.settlement import Moment, Plan, settle
from carom.core.topology import Binding, Exchange, Queue, arguments
from carom.errors import ConfigurationError
from carom.layouts import AsyncWorker, Job, async_worker
from carom.layouts.async_worker import snake

PLAN = Plan("shop_instant_queue", (), RetryPolicy.delays("1s", "2s", "4s"))
OF = AsyncWorker("shop", plans=(PLAN,))
GOLDEN = bytes.fromhex(
    "4e50590070056a086a6f622d6e616d656a056a6f622d316a046172677370016a0568656c6c6f6a07776f726c642d316a11"
    "63757272656e742d697465726174696f6e006a0972657472792d6d617864056a1072657472792d74696d656f75742d6d736503e8"
)
THEIRS = replace(ORDER, id="", headers={}, body=GOLDEN, exchange="shop_exchange", routing_key="shop_instant_queue")


def job(**changed):
    names_of = {"iteration": "current-iteration", "most": "retry-max", "timeout": "retry-timeout-ms"}
    return freeze({**thaw(GOLDEN), **{Keyword(names_of[name]): value for name, value in changed.items()}})


def settled(message, of=OF):
    return settle(Failed(OSError()), of.wire.read(message, PLAN.queue), PLAN, of, Moment(0))


@pytest.mark.parametrize(
    ("name", "snaked"),
    [
        ("my-app-jobs", "my_app_jobs"),
        ("myApp", "my_app"),
        ("app2", "app_2"),
        ("orders.v1", "orders.v_1"),
        ("HTTPServer", "http_server"),
        ("shop", "shop"),
        ("a  b--c_", "a_b_c"),
    ],
)
def test_names_are_written_as_its_library_writes_them(name, snaked):
    assert snake(name) == snaked


def test_the_topology_is_declared_as_theirs():
    assert OF.topology.exchanges == (Exchange("shop_exchange", "direct"),)
    back = {"x-dead-letter-exchange": "shop_exchange", "x-dead-letter-routing-key": "shop_instant_queue"}
    theirs = [queue for queue in OF.topology.queues if not queue.name.startswith("shop.")]
    assert theirs == [
        Queue("shop_instant_queue"),
        Queue("shop_dead_letter_queue"),
        *(
            Queue(f"shop_delay_queue_{ttl}_ms", arguments=arguments({**back, "x-message-ttl": ttl}))
            for ttl in (1_000, 2_000, 4_000)
        ),
    ]
    assert OF.topology.bindings == tuple(Binding("shop_exchange", queue.name, queue.name) for queue in theirs)


def test_a_golden_job_of_theirs_is_read_and_seen():
    arrival = OF.wire.read(THEIRS, PLAN.queue)
    assert (arrival.attempt, arrival.routing_key) == (1, "job-1")
    assert arrival.retry is not None
    assert arrival.retry.delays_ms == (1_000, 2_000, 4_000, 8_000, 16_000)
    seen = OF.wire.seen(arrival)
    assert (seen.content_type, thaw(seen.body)) == ("application/x-nippy", {"hello": "world-1"})


def test_a_job_waits_by_its_own_settings_and_carries_the_next_iteration():
    published = settled(replace(THEIRS, body=job(iteration=1))).effects[0].message
    assert published.routing_key == "shop_delay_queue_2000_ms"
    assert published.body == job(iteration=2)


def test_a_wait_that_has_no_queue_is_rounded_up_or_takes_turns():
    short = settled(replace(THEIRS, body=job(timeout=1_500))).effects[0].message
    assert short.routing_key == "shop_delay_queue_2000_ms"
    long = settled(replace(THEIRS, body=job(timeout=9_000))).effects[0].message
    assert (long.routing_key, long.headers[names.WAIT]) == ("shop_delay_queue_4000_ms", 5_000)


@pytest.mark.parametrize("settings", [{"most": 3, "iteration": 3}, {"most": None, "timeout": None}])
def test_what_is_exhausted_goes_to_the_dead_set_with_its_iteration(settings):
    body = job(**settings)
    letter = settled(replace(THEIRS, body=body)).effects[0].message
    assert (letter.exchange, letter.routing_key, letter.body) == ("shop_exchange", "shop_dead_letter_queue", body)


def test_what_is_no_job_keeps_its_body_and_is_dead_by_the_workers_own_policy():
    junk = replace(THEIRS, body=b"junk", headers={})
    assert OF.wire.seen(OF.wire.read(junk, PLAN.queue)).body == b"junk"
    assert OF.wire.read(junk, PLAN.queue).retry is None
    assert settled(junk).effects[0].message.body == b"junk"


def test_a_permanent_error_of_the_workers_policy_is_permanent_for_every_job():
    plan = replace(PLAN, retry=PLAN.retry.permanent(OSError))
    of = AsyncWorker("shop", plans=(plan,))
    assert settled(THEIRS, of).fate == "dead"


@pytest.mark.parametrize(("keeps", "attempt"), [(False, 1), (True, 6)])
def test_a_replayed_job_starts_anew_or_goes_on_as_theirs_does(keeps, attempt):
    of = async_worker(replay_keeps_iteration=keeps).build("shop", "", (PLAN,), "app")
    letter = replace(THEIRS, body=job(iteration=5), headers={names.REASON: "exhausted"})
    assert of.wire.read(letter, PLAN.queue).attempt == attempt


def test_an_announced_job_is_frozen_as_theirs_with_settings_by_its_name():
    wire = async_worker({"job-1": Job(5, 1_000)}).build("shop", "events", (), "app").wire
    sent = wire.outgoing(replace(ORDER, routing_key="job-1", body=b'{"hello": [1, {"a": null}]}'))
    assert (sent.exchange, sent.routing_key) == ("shop_exchange", "shop_instant_queue")
    assert sent.content_type == "application/octet-stream"
    assert thaw(sent.body) == {
        "job-name": "job-1",
        "args": {"hello": [1, {"a": None}]},
        "current-iteration": 0,
        "retry-max": 5,
        "retry-timeout-ms": 1_000,
    }
    other = thaw(wire.outgoing(replace(ORDER, routing_key="job-2", body=b"\xff")).body)
    assert (other["args"], other["retry-max"]) == (b"\xff", None)


def test_a_listener_without_retries_has_no_delay_queues():
    of = AsyncWorker("shop", plans=(Plan("shop_instant_queue"),))
    assert of.delays("shop_instant_queue") == ()
    assert thaw(of.wire.outgoing(ORDER).body)["retry-max"] == 0


def test_another_queue_and_another_ladder_are_refused_with_a_sentence():
    with pytest.raises(ConfigurationError, match=r"say @app.listen\(queue='my_app_instant_queue'\)"):
        AsyncWorker("my-app", plans=(Plan("mail"),))
    with pytest.raises(ConfigurationError, match="its waits double"):
        AsyncWorker("shop", plans=(replace(PLAN, retry=RetryPolicy.delays("1s", "5s")),))
