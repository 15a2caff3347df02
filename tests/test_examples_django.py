"""The shop of Django's, as its README says: on PostgreSQL with RabbitMQ, and on two files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from sqlalchemy import make_url

from brokers.rabbitmq.rabbit_stage import until
from databases import database_of_its_own
from processes import Programs, await_answer
from servers.server import HOST, free_port

MANAGE = Path(__file__).parent.parent / "examples" / "django_shop" / "manage.py"
SECONDS = 60


@pytest.fixture(params=["postgresql and rabbitmq", "files"])
def environment(request, tmp_path):
    project = {"PYTHONPATH": str(MANAGE.parent), "DJANGO_SETTINGS_MODULE": "project.settings"}
    if request.param == "files":
        yield {**project, "CAROM_BROKER": f"embedded:///{tmp_path / 'broker.db'}"}
        return
    broker = request.getfixturevalue("empty_rabbitmq_url")
    with database_of_its_own(request.getfixturevalue("postgres_url")) as made:
        url = make_url(made)
        named = {"PGDATABASE": url.database, "PGHOST": url.host, "PGPORT": str(url.port), "PGUSER": url.username}
        yield {**project, **named, "CAROM_BROKER": broker}


@pytest.fixture
def programs(tmp_path, environment):
    with Programs(tmp_path, environment) as made:
        yield made


def manage(programs, *words):
    done = subprocess.run(
        [sys.executable, MANAGE, *words],
        cwd=programs.folder,
        env=programs.environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


async def test_orders_are_taken_and_charged_and_programs_end_when_they_are_told_to(programs):
    manage(programs, "migrate")
    assert "no issues" in manage(programs, "check", "--database", "default")
    port = free_port()
    programs.start("web", "django", "runserver", "--noreload", f"{HOST}:{port}")
    programs.start("worker", "django", "carom_run", "--no-relay")
    programs.start("relay", "django", "carom_relay")
    await_answer(port, programs)
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as client:
        placed = [await client.post("/orders", json={"customer": "ada", "cents": cents}) for cents in (1250, 200_000)]
        assert [answer.status_code for answer in placed] == [201, 422]

        async def paid():
            return (await client.get(f"/orders/{placed[0].json()['order']}")).json()["paid"]

        try:
            await until(paid, "the payment", SECONDS)
        except AssertionError as error:
            raise AssertionError(programs.story()) from error
    assert programs.stop("relay") == 0, programs.said("relay")
    assert programs.stop("worker") == 0, programs.said("worker")


def test_its_own_tests_pass_and_its_models_are_as_its_migrations_make_them(programs):
    assert "Ran 3 tests" in manage(programs, "test", "orders")
    manage(programs, "makemigrations", "--check", "--dry-run")
