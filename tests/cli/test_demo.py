"""The demo shows what really happened, says so when it did not, and leaves nothing behind."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from dataclasses import replace

import pytest
from cli_stage import DEADLINE_S, carom, environment, real, running, taken
from rich.console import Console

from carom.cli.demo import shop, view
from carom.cli.demo.stage import chapters, new_board
from carom.cli.demo.story import CHAPTERS, Evidence, findings, message_of, problems
from carom.cli.demo.view import advice, drawn, summary
from carom.core.message import Message
from carom.testing import Harness

FATES = {1: "charged", 2: "charged", 3: "rejected", 4: "malformed", 5: "charged", 6: "crash-loop"}


@pytest.fixture
def board():
    return new_board()


def dead_letter(chapter, **changed):
    found = {"carom-reason": chapter.reason, "carom-crashes": chapter.crashes, **changed.pop("headers", {})}
    return Message(body=changed.get("body", chapter.body), headers=found)


@pytest.fixture
def evidence(board):
    """Return what is found when everything happened."""
    ids = chapters(board)
    return Evidence(
        dead={identity: dead_letter(chapter) for identity, chapter in ids.items() if chapter.reason},
        receipts={identity: chapter.attempt for identity, chapter in ids.items() if not chapter.reason},
        left={shop.QUEUE: 0},
        crashes=3,
        last_exit=0,
    )


def judged(board, evidence):
    found = findings(chapters(board), evidence)
    return problems(found, evidence)


def identity_of(board, number):
    return next(identity for identity, row in board.rows.items() if row.chapter.number == number)


# -- the judgement


def test_nothing_is_wrong_when_everything_was_found(board, evidence):
    assert judged(board, evidence) == ()


def test_an_order_that_is_nowhere_is_told(board, evidence):
    receipts = {identity: attempt for identity, attempt in evidence.receipts.items() if attempt == 3}
    said = judged(board, replace(evidence, receipts=receipts))
    assert said == tuple(f"order {n} was neither charged nor found among the dead letters" for n in (1, 5))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"headers": {"carom-reason": "exhausted"}}, "because it is exhausted, and not because it is crash-loop"),
        ({"headers": {"carom-reason": 7}}, "because it is no reason"),
        ({"headers": {"carom-crashes": 1}}, "caught after 1 crashes and not after 3"),
        ({"body": b"{}"}, "whose body was changed"),
    ],
)
def test_a_dead_letter_that_is_not_as_told_is_told(changed, said, board, evidence):
    identity = identity_of(board, 6)
    dead = {**evidence.dead, identity: dead_letter(CHAPTERS[5], **changed)}
    (line,) = judged(board, replace(evidence, dead=dead))
    assert line.startswith("order 6 ")
    assert said in line


def test_a_fate_that_was_swapped_is_told(board, evidence):
    first, third = identity_of(board, 1), identity_of(board, 3)
    dead = {identity: one for identity, one in evidence.dead.items() if identity != third}
    dead[first] = dead_letter(CHAPTERS[2])
    receipts = {**evidence.receipts, third: 1}
    receipts.pop(first)
    assert judged(board, replace(evidence, dead=dead, receipts=receipts)) == (
        "order 1 is a dead letter (rejected) and should have been charged",
        "order 3 was charged and should be a dead letter (rejected)",
    )


def test_a_dead_letter_that_was_charged_nevertheless_is_told(board, evidence):
    receipts = {**evidence.receipts, identity_of(board, 3): 1}
    assert judged(board, replace(evidence, receipts=receipts)) == (
        "order 3 is a dead letter and was charged nevertheless",
    )


def test_an_order_that_did_not_fail_as_often_as_told_is_told(board, evidence):
    receipts = {**evidence.receipts, identity_of(board, 2): 1}
    assert judged(board, replace(evidence, receipts=receipts)) == (
        "order 2 was charged at attempt 1 and not at attempt 3",
    )


def test_what_is_left_and_a_worker_that_did_not_behave_are_told(board, evidence):
    said = judged(board, replace(evidence, left={"a": 2, "b": 0}, crashes=2, last_exit=-9))
    assert said == (
        "2 messages are still in a",
        "the worker died 2 times and not 3",
        "the worker ended with -9 and not with 0 when it was asked to stop",
    )


# -- the shop itself, on virtual time


async def test_the_shop_charges_an_order_whose_bank_was_down_twice_at_attempt_3():
    async with Harness(shop.fast) as h:
        await h.broker.declare(shop.receipts())
        for chapter in CHAPTERS[:4]:
            await h.put(message_of(chapter, f"order-{chapter.number}", 0))
        await h.advance("1s")
        assert {message.headers["carom-reason"] for message in h.dead(shop.QUEUE)} == {"rejected", "malformed"}
        receipts = [json.loads(message.body) for message in h.broker.engine.contents(shop.RECEIPTS)]
        assert receipts == [{"number": 1, "attempt": 1}, {"number": 2, "attempt": 3}]


# -- the picture


def event(board, number, kind, **facts):
    board.heard({"event": kind, "message_id": identity_of(board, number), **facts})


def test_an_order_goes_where_the_worker_says_it_is(board):
    row = board.rows[identity_of(board, 2)]
    board.sent(identity_of(board, 2))
    assert row.place == "queue"
    event(board, 2, "Received", attempt=1)
    assert row.place == "handler"
    event(board, 2, "Retried", attempt=1, delay_ms=2000, error_type="carom.cli.demo.shop.BankIsDown")
    assert (row.place, row.back_at) == ("waiting", 2.0)
    event(board, 2, "Received", attempt=2)
    event(board, 2, "Handled", attempt=2)
    assert row.place == "done"
    event(board, 3, "DeadLettered", attempt=1, reason="re\x1bjected")
    assert [line for _, line in board.lines] == [
        "order 2 is sent: the bank is down, twice",
        "order 2 failed at attempt 1 (BankIsDown) and comes back in 2s",
        "order 2 is charged, at attempt 2",
        "order 3 is a dead letter: re\\x1bjected",
    ]


def test_what_a_dead_worker_held_is_back_in_the_queue(board):
    board.started(41)
    event(board, 5, "Received", attempt=1)
    event(board, 6, "Received", attempt=1)
    board.died(41, 1)
    assert board.rows[identity_of(board, 5)].place == "queue"
    assert board.lines[-1][1] == "worker 41 has died (exit code 1), holding order 5 and order 6"
    board.started(42)
    assert board.lines[-1][1] == "worker 42 starts, in its place"


def test_what_the_worker_says_of_others_or_nonsense_moves_nothing(board):
    before = str(board)
    for odd in ({}, {"message_id": 7}, {"message_id": "someone else's", "event": "Handled"}):
        board.heard(odd)
    event(board, 1, "Unheard", attempt="x")
    assert str(board) == before


def lines(*things, width=80):
    out = Console(width=width, color_system=None, markup=False, highlight=False)
    with out.capture() as captured:
        out.print(*things, sep="\n")
    return captured.get().split("\n")


def test_the_picture_keeps_its_height_and_fits_80_columns(board):
    heights = set()
    for step in range(30):
        board.now = step * 7.7
        board.say(f"step [bold]{step}[/bold] " + "x" * 90)
        board.starts, board.crashes = step, step
        board.depths = {shop.QUEUE: step, shop.RECEIPTS: 1, "carom-demo.delay.1s": 3, "carom-demo.charge.dlq": 88}
        event(board, 1 + step % 6, ("Received", "Handled", "Retried", "DeadLettered")[step % 4], reason="crash-loop")
        found = lines(drawn(board, "an embedded broker"))
        heights.add(len(found))
        assert all(len(line) <= 80 for line in found)
        assert "[bold]" in "".join(found)
    assert len(heights) == 1
    assert heights.pop() <= view.HEIGHT


def test_the_summary_fits_80_columns_whatever_is_wrong(board, evidence):
    for one in (evidence, replace(evidence, dead={}, receipts={}, left={"x" * 100: 3})):
        found = findings(chapters(board), one)
        text = lines(summary(found, problems(found, one), crashes=3, seconds=9.0), advice({"carom x": "y"}))
        assert all(len(line) <= 80 for line in text)
        assert ("All of it happened" in "".join(text)) is (one is evidence)


# -- the whole of it, for real


def test_the_demo_really_happens_and_says_so_in_plain_lines(tmp_path):
    found = real("demo", "--fast", cwd=tmp_path, TMPDIR=str(tmp_path))
    text = found.stdout.decode()
    assert found.returncode == 0, text + found.stderr.decode()
    assert "All of it happened" in text
    assert re.search(r"\d\.\d s  worker \d+ has died \(exit code 1\), holding .*order 6", text)
    assert re.search(r"order 2 is charged, at attempt 3", text)
    assert "\x1b" not in text
    assert list(tmp_path.iterdir()) == []


def test_what_the_demo_tells_can_be_found_in_the_file_it_keeps(tmp_path):
    found = real("demo", "--fast", "--keep", "--json", cwd=tmp_path, TMPDIR=str(tmp_path))
    assert found.returncode == 0, found.stderr.decode()
    value = json.loads(found.stdout)
    assert value["ok"] is True
    assert {one["number"]: one["reason"] or "charged" for one in value["orders"]} == FATES
    (file,) = tmp_path.glob("carom-demo-*/broker.db")
    assert f"embedded:///{file}" in found.stderr.decode()
    dead = {message.headers["carom-reason"]: message for message in taken(file, f"{shop.QUEUE}.dlq", at_least=3)}
    assert set(dead) == {"rejected", "malformed", "crash-loop"}
    assert dead["malformed"].body == CHAPTERS[3].body
    assert dead["crash-loop"].headers["carom-crashes"] == 3
    receipts = {json.loads(message.body)["number"] for message in taken(file, shop.RECEIPTS, at_least=3)}
    assert receipts == {1, 2, 5}


def test_the_demo_moves_on_a_terminal(tmp_path):
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "carom", "demo", "--fast"]
    variables = {**environment(TERM="xterm-256color"), "NO_COLOR": ""}
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stdin=terminal, stdout=terminal) as process:
        os.close(terminal)
        seen = b""
        try:
            while part := _read(control):
                seen += part
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            os.close(control)
    text = seen.decode()
    assert "dead letter" in text
    assert "\x1b[?25l" in text  # the cursor is hidden while it moves
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # and is there again afterwards
    assert "All of it happened" in text


def _read(control):
    try:
        return os.read(control, 65536)
    except OSError:  # on Linux, what a terminal says when nobody holds its other end
        return b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_demo_and_leaves_nothing_behind(number, code, tmp_path):
    with running("demo", cwd=tmp_path, TMPDIR=str(tmp_path)) as demo:
        said = ""
        while "order 1 is sent" not in said:
            said += demo.process.stdout.readline()
        (worker,) = re.findall(r"worker (\d+) starts", said)
        demo.process.send_signal(number)
        demo.process.stdout.read()
        assert demo.end() == code
    with pytest.raises(ProcessLookupError):
        os.kill(int(worker), 0)
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_only_one_process_sees_is_refused():
    found = carom("demo", "--broker", "embedded://")
    assert found.exit_code == 2
    assert "the memory of one process" in found.stderr


def test_a_broker_that_cannot_be_reached_is_said_at_once(tmp_path):
    found = real("demo", "--fast", "--broker", "embedded:///no/such/folder/x.db", cwd=tmp_path)
    assert found.returncode == 78, found.stderr
    assert b"no/such/folder" in found.stderr
    assert b"Traceback" not in found.stderr


def test_nothing_of_a_worker_that_cannot_start_is_hidden(tmp_path, monkeypatch):
    """A worker that dies again and again from something else is not the story's; its last words are shown."""
    monkeypatch.setattr("carom.cli.demo.stage.STARTS", 2)
    monkeypatch.setattr("carom.cli.demo.stage.RESTART_S", 0.0)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('broken on purpose')\n")
    found = carom("demo", "--fast")
    assert found.exit_code == 78, found.output
    assert "the worker died 2 times; it last said" in found.stderr
