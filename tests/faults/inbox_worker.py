"""A worker that is killed: an idempotent listener on real servers, whose jobs say how often they fail.

Run as a program it takes its orders as a JSON object and works until it is stopped or meets a failpoint.

Rule: an effect is a row without any constraint, so that what was done twice is there twice. A failure comes after the
effect was written, so that a rollback that is none shows.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from carom import App, BatchFailure, Message
from carom.ports import Database

RETRY = ("40ms", "40ms", "40ms")
NEVER = 99
"""More failures than there are attempts."""


class Job(msgspec.Struct):
    """A number, and how many attempts at it fail."""

    number: int
    failures: int = 0


@dataclass(frozen=True)
class Orders:
    """Where a worker works, and how."""

    broker: str
    database: str
    name: str
    batch: int | None = None

    @property
    def queue(self):
        return f"{self.name}.jobs"

    @property
    def effects(self):
        return f'"{self.name}_effects"'

    def app(self, handler=None, observers=(), **options):
        app = App(
            self.broker,
            database=Database(self.database, prefix=f"{self.name}_"),
            namespace=self.name,
            exchange=f"{self.name}.events",
            name=self.name,
            observers=observers,
        )
        given = {"retry": RETRY, "batch": self.batch, "crash_limit": 10_000, "idempotent": True, **options}
        default = self.work_in_batches if self.batch else self.work
        app.listen("job", queue=self.queue, **given)(handler or default)
        return app

    async def write(self, session, *numbers):
        """Do what has to be done once."""
        rows = [{"number": number} for number in numbers]
        await session.execute(text(f"INSERT INTO {self.effects} (number) VALUES (:number)"), rows)  # noqa: S608 - our own name

    async def work(self, job: Job, message: Message, session: AsyncSession) -> None:
        await self.write(session, job.number)
        if message.attempt <= job.failures:
            raise ValueError(f"attempt {message.attempt} of job {job.number} fails")

    async def work_in_batches(self, jobs: list[Job], messages: list[Message], session: AsyncSession) -> None:
        await self.write(session, *(job.number for job in jobs))
        failed = {
            index: ValueError(f"job {job.number} fails")
            for index, (job, message) in enumerate(zip(jobs, messages, strict=True))
            if message.attempt <= job.failures
        }
        if failed:
            raise BatchFailure(failed)


if __name__ == "__main__":
    asyncio.run(Orders(**json.loads(sys.argv[1])).app().run(relay=False))
