"""The log of a broker file: every process that reads it comes to the same state, and what failed never happened."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
import warnings
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carom.brokers.embedded import journal as journal_module
from carom.brokers.embedded import sessions
from carom.brokers.embedded.commands import (
    Batch,
    Cancel,
    Consume,
    Declare,
    DeleteQueue,
    End,
    Get,
    Publish,
    Purge,
    Settle,
    decode_entry,
    encode,
    encode_entry,
)
from carom.brokers.embedded.engine import Engine
from carom.brokers.embedded.journal import Journal, Look, Request
from carom.core.effects import CONFIRMED
from carom.core.message import Message
from carom.core.topology import Topology, at_least_once, quorum
from carom.errors import BrokerError, BrokerUnavailable, ConfigurationError, NotPermitted

QUEUES = ("a", "b")
TOPOLOGY = Topology(
    queues=(
        quorum("a", message_ttl=50, delivery_limit=3, **at_least_once("", "b")),
        quorum("b", max_length=6, dead_letter_exchange="", dead_letter_routing_key="dead"),
        quorum("dead"),
    )
)


@contextmanager
def opened(path, count=1):
    with ExitStack() as stack:
        journals = []
        for _ in range(count):
            journal = Journal(path)
            stack.callback(journal.close)
            journal.open()
            journal.enter()
            journals.append(journal)
        yield journals


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="carom-journal-") as folder:
        yield Path(folder) / "broker.db"


def do(journal, *commands, now_ms=1):
    return journal.turn([Request(command) for command in commands], now_ms)


def publish(queue, *bodies, **fields):
    return Publish(Batch([Message(body=body, routing_key=queue, **fields) for body in bodies]))


def bodies(change):
    return [one.message.body for one in change.handed]


def state(journal):
    """All that can be seen of an engine, tags and turns included; snapshots of equal states may differ in order."""
    names = [*QUEUES, "dead"]

    def question(engine):
        held = {session: engine.unsettled(session) for session in sorted(engine.held)}
        contents = {name: engine.contents(name) for name in names if name in engine.queues}
        return held, engine.depths(names), contents, sorted(engine.consumers), engine.next_due_ms(), engine.last_tag

    return do(journal, Look(question), now_ms=0).answers[0]


# --- commands


def test_what_a_log_brings_back_is_what_was_put_in():
    message = Message(
        body=b"\x00\xff",
        exchange="x",
        routing_key="k",
        id="i",
        correlation_id="c",
        content_type="t",
        content_encoding="e",
        type="y",
        app_id="a",
        reply_to="r",
        user_id="u",
        expiration="5",
        timestamp=7,
        priority=3,
        delivery_mode=1,
        headers={
            "n": None,
            "d": Decimal("1.50"),
            "at": datetime(2026, 1, 2, tzinfo=UTC),
            "naive": datetime(2026, 1, 2),  # noqa: DTZ001 - such values do come from applications
            "big": 2**70,
            "b": b"\x01",
            "l": [1, "x", {"y": Decimal(1)}],
            "f": 1.5,
            "t": True,
        },
    )
    commands = [
        Declare(TOPOLOGY),
        Consume("s", "c", "a", 3),
        Cancel("s", "c"),
        Get("s", "a"),
        Settle("s", "ack", [1, 2]),
        End("s"),
        DeleteQueue("a"),
        Purge("a"),
    ]
    entry = decode_entry(encode_entry(9, [encode(command) for command in [*commands, Publish(Batch([message]))]]))
    assert (entry.now_ms, entry.commands[:-1]) == (9, commands)
    assert entry.commands[-1].batch.messages == [message]


# --- the same state everywhere

publishing = st.tuples(st.just("publish"), st.sampled_from(QUEUES), st.integers(1, 4))
operations = st.one_of(
    publishing,
    publishing,
    publishing,
    st.tuples(st.just("consume"), st.sampled_from(QUEUES), st.integers(1, 3)),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("settle"), st.sampled_from(["ack", "hand_back", "refuse"]), st.integers(0, 5)),
    st.tuples(st.just("get"), st.sampled_from(QUEUES)),
    st.tuples(st.just("pass"), st.integers(1, 60)),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("break")),
    st.tuples(st.just("read")),
    st.tuples(st.just("purge"), st.sampled_from(QUEUES)),
)


class Player:
    """One process at the file: what it was told is all it knows."""

    def __init__(self, journal):
        self.journal = journal
        self.held = {}
        self.consumers = []
        self.seen = []

    def turn(self, command, now_ms):
        change = do(self.journal, *([command] if command else []), now_ms=now_ms)
        assert not change.lost
        for one in [*change.handed, *(answer for answer in change.answers if hasattr(answer, "tag"))]:
            assert one.tag not in self.seen, "a delivery was told twice"
            self.seen.append(one.tag)
            self.held[one.tag] = one
        return change

    def play(self, operation, now_ms, number):
        match operation:
            case ("publish", queue, count):
                self.turn(publish(queue, *(b"%d.%d" % (number, index) for index in range(count))), now_ms)
            case ("consume", queue, prefetch):
                self.consumers.append(f"c{number}")
                self.turn(Consume(self.journal.session, f"c{number}", queue, prefetch), now_ms)
            case ("cancel", index) if self.consumers:
                self.turn(Cancel(self.journal.session, self.consumers[index % len(self.consumers)]), now_ms)
            case ("settle", verb, index) if self.held:
                tag = sorted(self.held)[index % len(self.held)]
                del self.held[tag]
                self.turn(Settle(self.journal.session, verb, [tag]), now_ms)
            case ("get", queue):
                self.turn(Get(self.journal.session, queue), now_ms)
            case ("purge", queue):
                self.turn(Purge(queue), now_ms)
            case ("snapshot",):
                self.snapshot()
            case ("break",):
                self.journal._broken = True
            case _:
                self.turn(None, now_ms)

    def snapshot(self):
        self.journal._log_bytes = 1 << 40
        before, journal_module.SNAPSHOT_AFTER = journal_module.SNAPSHOT_AFTER, -1
        try:
            change = self.journal.snapshot()
        finally:
            journal_module.SNAPSHOT_AFTER = before
        for one in change.handed:
            assert one.tag not in self.seen, "a delivery was told twice"
            self.seen.append(one.tag)
            self.held[one.tag] = one


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), operations), min_size=15, max_size=50))
def test_every_process_comes_to_the_same_state_and_is_told_of_each_delivery_once(plan):
    with tempfile.TemporaryDirectory(prefix="carom-journal-") as folder:
        path = Path(folder) / "broker.db"
        with opened(path, 3) as journals:
            players = [Player(journal) for journal in journals]
            players[0].turn(Declare(TOPOLOGY), 1)
            for player in players[:2]:  # or most plans would deliver nothing
                player.play(("consume", "b", 3), 1, 0)
            now_ms = 1
            for number, (who, operation) in enumerate(plan, 1):
                if operation[0] == "pass":
                    now_ms += operation[1]
                players[who].play(operation, now_ms, number)
            for player in players:
                player.turn(None, now_ms)
            for player in players:  # a tick of one may have been missed by those before it
                player.turn(None, now_ms)
            expected = state(journals[0])
            assert [state(journal) for journal in journals[1:]] == [expected, expected]
            for player in players:
                assert sorted(player.held) == [one.tag for one in expected[0].get(player.journal.session, [])]
            with opened(path) as [late]:
                assert state(late) == expected


def test_a_process_that_slept_through_a_snapshot_gets_its_deliveries_once(path):
    with opened(path, 2) as [sleeper, busy]:
        do(sleeper, Declare(TOPOLOGY), Consume(sleeper.session, "c", "b", 2), publish("b", b"1"))
        assert sleeper._held == {1}
        do(busy, publish("b", b"2"))
        do(busy, publish("b", b"3"))
        Player(busy).snapshot()
        do(busy, publish("b", b"4"))
        change = do(sleeper)
        assert bodies(change) == [b"2"]
        assert bodies(do(sleeper)) == []
        assert bodies(do(sleeper, Settle(sleeper.session, "ack", [1, 2]))) == [b"3", b"4"]
        do(sleeper, Settle(sleeper.session, "ack", [3, 4]))
        assert sleeper._held == set(), "what is settled is not remembered for ever"


def test_a_process_that_slept_through_a_snapshot_learns_that_its_queue_is_gone(path):
    with opened(path, 2) as [sleeper, busy]:
        do(sleeper, Declare(TOPOLOGY), Consume(sleeper.session, "c", "b", 2))
        do(busy, DeleteQueue("b"))
        do(busy, publish("a", b"0"))
        Player(busy).snapshot()
        do(busy, publish("a", b"1"))
        assert [(gone.consumer, gone.queue) for gone in do(sleeper).ended] == [("c", "b")]
        assert do(sleeper).ended == []


def test_the_log_becomes_a_snapshot_when_it_has_outgrown_it(path, monkeypatch):
    monkeypatch.setattr(journal_module, "SNAPSHOT_AFTER", 10_000)
    with opened(path) as [journal]:
        journal._measure(journal._db)
        do(journal, Declare(TOPOLOGY))
        do(journal, publish("dead", *[b"x" * 1000] * 20))
        assert journal.snapshot_is_due
        journal.snapshot()
        assert not journal.snapshot_is_due
        assert journal._db.execute("SELECT COUNT(*) FROM log").fetchone() == (1,)
        for _ in range(2):
            do(journal, publish("dead", *[b"x" * 1000] * 15))
            assert not journal.snapshot_is_due, "the log may grow to twice the snapshot"
        do(journal, publish("dead", *[b"x" * 1000] * 15))
        assert journal.snapshot_is_due
    with opened(path) as [journal]:
        assert do(journal, Look(lambda engine: engine.depths(["dead"])["dead"].ready)).answers == [65]


def test_a_snapshot_that_another_process_just_took_is_not_taken_again(path):
    with opened(path, 2) as [one, other]:
        do(one, Declare(TOPOLOGY), publish("dead", b"1"))
        Player(other).snapshot()
        one._log_bytes = 1 << 40
        one.snapshot()
        assert not one.snapshot_is_due
        assert one._db.execute("SELECT MAX(seq) FROM snapshot").fetchone() == (1,)


def test_a_state_larger_than_a_part_is_kept_in_several(path, monkeypatch):
    monkeypatch.setattr(journal_module, "_PART", 100)
    with opened(path) as [journal]:
        do(journal, Declare(TOPOLOGY), publish("dead", b"y" * 1000))
        Player(journal).snapshot()
        assert journal._db.execute("SELECT COUNT(*) FROM snapshot").fetchone() > (10,)
    with opened(path) as [journal]:
        assert do(journal, Look(lambda engine: engine.contents("dead")[0].body)).answers == [b"y" * 1000]


# --- time


def test_time_never_runs_backwards_in_the_log(path):
    with opened(path, 2) as [one, other]:
        do(one, Declare(TOPOLOGY), publish("a", b"1"), now_ms=1000)
        do(other, publish("a", b"2"), now_ms=400)
        times = [decode_entry(row[0]).now_ms for row in one._db.execute("SELECT commands FROM log ORDER BY seq")]
        assert times == [1000, 1000]


def test_what_is_due_is_done_by_whoever_comes_first_and_only_once(path):
    with opened(path, 2) as [one, other]:
        change = do(one, Declare(TOPOLOGY), publish("a", b"1"), now_ms=1000)
        assert change.due_ms == 1050
        assert do(one, now_ms=1049).due_ms == 1050
        assert do(other, now_ms=1050).due_ms is None
        assert do(one, now_ms=1050).due_ms is None
        assert one._db.execute("SELECT COUNT(*) FROM log").fetchone() == (2,)


# --- failures


def test_a_command_the_engine_refuses_is_answered_and_not_logged(path):
    with opened(path) as [journal]:
        change = do(journal, Consume(journal.session, "c", "nowhere", 1), Get(journal.session, "nowhere"))
        assert [type(answer) for answer in change.answers] == [BrokerError, BrokerError]
        assert journal._db.execute("SELECT COUNT(*) FROM log").fetchone() == (0,)


def test_what_a_failed_commit_did_has_not_happened(path):
    with opened(path, 2) as [journal, other]:
        do(journal, Declare(TOPOLOGY), Consume(journal.session, "c", "b", 10), publish("b", b"1"))
        full(journal)
        with pytest.raises(BrokerUnavailable, match="no room"):
            do(journal, Settle(journal.session, "ack", [1]), publish("b", b"x" * 100_000))
        change = do(journal)
        assert (bodies(change), journal._held) == ([], {1})
        assert state(journal) == state(other)
        assert do(journal, publish("b", b"2")).answers == [[CONFIRMED]]


def test_what_others_did_while_a_commit_failed_is_told_later(path):
    with opened(path, 2) as [journal, other]:
        do(journal, Declare(TOPOLOGY), Consume(journal.session, "c", "b", 10))
        do(other, publish("b", b"1"))
        full(journal)
        with pytest.raises(BrokerUnavailable):
            do(journal, publish("b", b"x" * 100_000))
        assert bodies(do(journal)) == [b"1"]
        assert bodies(do(journal)) == []


def test_a_turn_that_never_came_loses_nothing_that_was_read(path, monkeypatch):
    with opened(path, 2) as [journal, other]:
        do(journal, Declare(TOPOLOGY), Consume(journal.session, "c", "b", 10), publish("a", b"due"), now_ms=1)
        do(other, publish("b", b"1"), now_ms=1)
        monkeypatch.setattr(sessions, "PATIENCE_S", 0.01)
        with other._turn.taken(), pytest.raises(BrokerUnavailable, match="another process has been writing"):
            do(journal, now_ms=100)  # reads what there is, then waits in vain for its turn to expire what is due
        assert bodies(do(journal, now_ms=100)) == [b"1", b"due"]


def test_an_engine_that_breaks_takes_nothing_with_it(path):
    class Broken(Purge, tag="broken", frozen=True):
        def apply(self, engine, now_ms):
            engine.purge("b", now_ms)
            raise ZeroDivisionError

    with opened(path) as [journal]:
        do(journal, Declare(TOPOLOGY), publish("b", b"1"))
        with pytest.raises(ZeroDivisionError):
            do(journal, Broken("b"))
        assert do(journal, Look(lambda engine: len(engine.contents("b")))).answers == [1]


def full(journal):
    """Let the next commit of this connection find the disk full; opening the file again makes room."""
    (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
    journal._db.execute(f"PRAGMA max_page_count = {pages}")


# --- what is no broker file


def test_another_file_is_refused_and_left_as_it_is(path):
    path.write_text("# my notes\n" * 100)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="not a broker file"):
        Journal(path).open()
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name]


def test_a_database_of_something_else_is_refused_and_left_as_it_is(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE orders (id INTEGER)")
    db.close()
    before = path.read_bytes()
    journal = Journal(path)
    with pytest.raises(ConfigurationError, match="database of something else"):
        journal.open()
    with pytest.raises(BrokerUnavailable, match="is not open"):
        journal.registered()
    assert path.read_bytes() == before


def test_a_newer_format_is_refused_with_both_versions(path):
    with opened(path) as [journal]:
        journal._db.execute("UPDATE meta SET value = 99")
    with pytest.raises(ConfigurationError, match="format 99 and this version of Carom reads format 1"):
        Journal(path).open()


def test_a_directory_is_refused(path):
    with pytest.raises(ConfigurationError, match="is a directory"):
        Journal(path.parent).open()


def test_a_missing_directory_is_named(path):
    with pytest.raises(ConfigurationError, match="does not exist: create it"):
        Journal(path.parent / "nowhere" / "broker.db").open()


def test_a_truncated_file_is_refused_with_a_sentence(path):
    with opened(path) as [journal]:
        do(journal, Declare(TOPOLOGY), publish("dead", b"x" * 50_000))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    journal = Journal(path)
    with pytest.raises((ConfigurationError, BrokerUnavailable)) as caught:
        journal.open()
    journal.close()
    assert str(path) in str(caught.value)


def test_an_entry_that_cannot_be_read_is_named(path):
    with opened(path) as [journal]:
        do(journal, Declare(TOPOLOGY))
        journal._db.execute("UPDATE log SET commands = x'ffff'")
    journal = Journal(path)
    with pytest.raises(ConfigurationError, match=r"entry 1 of .* cannot be replayed"):
        journal.open()
    journal.close()


def test_a_file_that_was_replaced_is_noticed(path):
    with opened(path) as [journal]:
        do(journal, Declare(TOPOLOGY))
        path.rename(path.with_suffix(".old"))
        with pytest.raises(BrokerUnavailable, match="removed or replaced"):
            do(journal, publish("dead", b"1"))
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE t (i INTEGER)")
        db.close()
        with pytest.raises(BrokerUnavailable, match="removed or replaced"):
            do(journal)


def test_a_file_of_somebody_else_is_not_permitted(path):
    with opened(path):
        pass
    path.parent.chmod(0o755)
    with somebody_else():
        journal = Journal(path)
        with pytest.raises(NotPermitted, match="check its permissions"):
            journal.open()
        journal.close()
        with pytest.raises(NotPermitted, match="check its permissions"):
            Journal(path.with_name("new.db")).open()


@contextmanager
def somebody_else():
    """Be a user who may write nothing here: root becomes nobody, and others lose their own permission to write."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
    else:
        pytest.fail("run as root, or extend this test: it has to become another user")


def test_a_new_file_is_for_its_owner_alone(path):
    with opened(path) as [journal]:
        do(journal, Declare(TOPOLOGY))
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()}
        assert modes == {
            "broker.db": 0o600,
            "broker.db-wal": 0o600,
            "broker.db-shm": 0o600,
            "broker.db-sessions": 0o700,
        }
        assert {entry.stat().st_mode & 0o777 for entry in journal.folder.iterdir()} == {0o600}


def test_somebody_elses_lock_is_a_sentence(path, monkeypatch):
    monkeypatch.setattr(journal_module, "BUSY_S", 0.01)
    with opened(path) as [journal]:
        do(journal, Declare(TOPOLOGY))
        shell = sqlite3.connect(path, isolation_level=None)
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(BrokerUnavailable, match="another program keeps"):
            do(journal, publish("dead", b"1"))
        shell.execute("ROLLBACK")
        shell.close()
        assert do(journal, publish("dead", b"1")).answers == [[CONFIRMED]]


# --- looking only


def test_an_observer_sees_everything_and_writes_nothing(path):
    with opened(path) as [journal]:
        do(journal, Declare(TOPOLOGY), publish("dead", b"1"))
        observer = Journal(path, observe=True)
        observer.open()
        question = Look(lambda engine: engine.depths(["dead"])["dead"].ready)
        assert do(observer, question).answers == [1]
        do(journal, publish("dead", b"2"), publish("a", b"due"))
        assert do(observer, question, now_ms=1_000).answers == [2]
        with pytest.raises(BrokerError, match="reading only"):
            do(observer, publish("dead", b"3"))
        observer.close()
        assert journal._db.execute("SELECT COUNT(*) FROM session").fetchone() == (1,)


def test_an_observer_of_nothing_says_so(path):
    with pytest.raises(BrokerUnavailable, match="there is no broker file"):
        Journal(path, observe=True).open()
    path.touch()
    observer = Journal(path, observe=True)
    with pytest.raises(BrokerUnavailable, match="nothing has been written"):
        observer.open()
    observer.close()


# --- sessions


def test_a_living_session_is_in_no_grave_and_a_dead_one_is(path):
    with opened(path) as [journal]:
        folder = journal.folder
        other = sessions.Session(folder)
        assert sessions.graves(folder, [journal.session, other.id], "") == []
        other.leave(settled=False)
        [grave] = sessions.graves(folder, [journal.session, other.id], "")
        assert grave.session == other.id
        assert sessions.graves(folder, [other.id], "") == [], "somebody else deals with it"
        grave.bury()
        assert not (folder / other.id).exists()
        assert [one.session for one in sessions.graves(folder, [other.id], "")] == [other.id]


def test_the_dead_session_s_messages_come_back(path):
    with opened(path) as [journal]:
        do(journal, Declare(TOPOLOGY), publish("b", b"1"))
        dead = Journal(path)
        dead.open()
        dead.enter()
        session = dead.session
        assert bodies(do(dead, Consume(session, "c", "b", 5))) == [b"1"]
        dead.close()
        do(journal)
        assert session in journal.registered()
        do(journal, End(session))
        assert session not in journal.registered()
        [taken] = do(journal, Get(journal.session, "b")).answers
        assert (taken.message.body, taken.redelivered) == (b"1", True)


def test_a_session_that_was_ended_by_others_knows(path):
    with opened(path, 2) as [one, other]:
        do(one, Declare(TOPOLOGY))
        do(other, End(one.session))
        change = do(one, Consume(one.session, "c", "b", 5))
        assert change.lost
        assert [type(answer) for answer in change.answers] == [BrokerUnavailable]
        assert state(one)[3] == [], "an ended session starts nothing that nobody would end"
        one.enter()
        assert not do(one, Consume(one.session, "c", "b", 5)).lost


def test_leftovers_of_a_start_that_was_killed_are_removed_when_they_are_old(path):
    with opened(path) as [journal]:
        draft = journal.folder / ".new-x"
        os.mkfifo(draft)
        sessions.graves(journal.folder, [], journal.session)
        assert draft.exists()
        os.utime(draft, (0, 0))
        sessions.graves(journal.folder, [], journal.session)
        assert not draft.exists()


def test_a_wake_up_reaches_the_living_and_ignores_the_dead(path):
    with opened(path) as [journal]:
        sessions.wake(journal.folder, [journal.session, "nobody"])
        assert os.read(journal._presence.fd, 10) == b"!"


def test_a_busy_process_cannot_pass_one_that_waits(path):
    with opened(path, 2) as [busy, patient]:
        order = []

        def wait():
            with patient._turn.taken():
                order.append("patient")

        thread = threading.Thread(target=wait)
        with busy._turn.taken():
            thread.start()
            while not holds_next(busy):
                pass
            order.append("busy")
        with busy._turn.taken():
            order.append("busy again")
        thread.join()
        assert order == ["busy", "patient", "busy again"]


def holds_next(journal):
    """Tell whether somebody stands at the head of the line."""
    other = sessions.Turn(journal.folder)
    try:
        sessions._take(other._next, deadline=0)
    except BrokerUnavailable:
        return True
    finally:
        other.shut()
    return False


def test_a_forked_child_does_not_keep_a_dead_parents_session_alive(path):
    with opened(path) as [journal]:
        lock = journal._presence.fd
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of threads; this child only looks and goes
            child = os.fork()
        if child == 0:
            os._exit(0 if journal._presence.fd == -1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert journal._presence.fd == lock


def test_an_engine_s_state_survives_a_snapshot_exactly(path):
    with opened(path) as [journal]:
        do(journal, Declare(TOPOLOGY), Consume(journal.session, "c", "b", 2), publish("b", b"1", b"2", b"3"))
        do(journal, Settle(journal.session, "hand_back", [1]))
        before = state(journal)
        journal._engine = Engine.restore(journal._engine.snapshot())
        assert state(journal) == before
