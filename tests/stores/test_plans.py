"""PostgreSQL finds what a relay asks for by its indexes, however many rows were sent, wait or are parked."""

import pytest
from bench import outbox as bench_outbox

from carom.ports import Database
from carom.stores import connect
from stores.store_stage import drop

PREFIX = "plan_"
ROWS = 200_000


@pytest.fixture
def url(postgres_url):
    yield postgres_url
    drop(postgres_url, PREFIX)


async def test_nothing_a_relay_runs_reads_the_whole_outbox(url):
    store = connect(Database(url, prefix=PREFIX, keep_sent="1h"))
    await store.open("apply")
    await bench_outbox.fill(store, f"{PREFIX}outbox", ROWS)
    lease = await store.lead("test", 60_000)
    plans = await bench_outbox.plans(store, lease)
    await store.close()
    assert {plan.call for plan in plans if plan.scans_all} == set()
    explained = {plan.call: "\n".join(plan.statements) for plan in plans}
    assert f"Index Scan using {PREFIX}outbox_ready" in explained["claim 1000 with 2000 in flight"]
    assert f"{PREFIX}outbox_failing" in explained["claim 1000 with 2000 in flight"]
    assert "hashed SubPlan" in explained["claim 1000 with 2000 in flight"]
    assert "Sort" not in explained["claim 1000 with 2000 in flight"]
    assert f"{PREFIX}outbox_waiting" in explained["release"]
    assert f"{PREFIX}outbox_sent" in explained["forget_sent 1000"]


def test_a_plan_that_reads_all_is_known_for_one():
    whole = "Seq Scan on plan_outbox o  (cost=0.00..1 rows=1 width=1)"
    assert bench_outbox.Plan("claim", 1.0, (whole,)).scans_all
    assert not bench_outbox.Plan("claim", 1.0, ("Index Scan using plan_outbox_ready on plan_outbox",)).scans_all
