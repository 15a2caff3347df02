"""What was kept long enough is deleted by and by, in batches, by whoever runs.

Rule: the rows are real, and time is virtual.
"""

from relay_stage import backlog, counted, outside, shop

from carom.runtime.housekeeping import BATCH
from carom.testing import Harness


async def test_old_rows_are_deleted_in_batches_with_pauses():
    async with Harness(shop(keep_sent="1h")) as h:
        async with h.transaction() as session:
            h.app.emit_many(session, [("job.do", number) for number in range(2 * BATCH + 10)])
        assert await backlog(h) == {"sent": 2 * BATCH + 10}
        deletes = counted(h, "DELETE FROM")
        await h.advance("3h")
        assert await backlog(h) == {}
        assert len([one for one in deletes if "sent_at" in one]) >= 4


async def test_what_was_seen_long_ago_is_forgotten():
    async with Harness(shop(keep_seen="8d", replay_window="1d")) as h:
        now_ms = h.clock.now_ms()
        for number, age_ms in enumerate((0, 9 * 86_400_000)):
            outside(
                h,
                "INSERT INTO carom_inbox (listener, message_id, attempt, seen_at) VALUES ('q', ?, 1, ?)",
                str(number),
                now_ms - age_ms,
            )
        await h.advance("2h")
        assert outside(h, "SELECT message_id FROM carom_inbox") == [("0",)]
