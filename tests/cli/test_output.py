"""What a command says is data or a sentence, and its exit code says which."""

import io
import json
import logging
import sys

import click
import pytest
from cli_stage import carom, real
from hypothesis import given
from hypothesis import strategies as st

from carom.cli import logs, output
from carom.cli.output import Output, exit_code, guarded, shown
from carom.errors import (
    BrokerUnavailable,
    ConfigurationError,
    NotConfirmed,
    NotPermitted,
    TopologyError,
    TopologyMismatch,
    Unroutable,
    Unsupported,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("x"), 78),
        (TopologyError(["x"]), 78),
        (Unsupported("x"), 78),
        (BrokerUnavailable("x"), 69),
        (NotPermitted("x"), 77),
        (TopologyMismatch(["x"]), 5),
        (Unroutable("x"), 1),
        (NotConfirmed("x"), 1),
        (LookupError("x"), 1),
        (ExceptionGroup("all", [NotPermitted("x"), ExceptionGroup("in", [NotPermitted("y")])]), 77),
        (ExceptionGroup("mixed", [NotPermitted("x"), BrokerUnavailable("y")]), 1),
    ],
)
def test_an_error_has_one_exit_code(error, code):
    assert exit_code(error) == code


@given(st.text())
def test_nothing_that_is_shown_controls_a_terminal(text):
    found = shown(text)
    assert found.isprintable()
    assert all(one in found for one in text if one.isprintable())
    found.encode()


def test_what_does_not_print_is_escaped_and_what_does_is_not():
    assert shown("a\x1b[31mb\u202ec\nd\udcff é 訂") == "a\\x1b[31mb\\u202ec\\nd\\udcff é 訂"
    assert shown("a\nb", keep="\n") == "a\nb"


def failing(error, *, verbosity=0, as_json=False):
    def command():
        raise error

    with pytest.raises(click.exceptions.Exit) as ended:
        guarded(Output(as_json, verbosity), command)
    return ended.value.exit_code


def test_an_error_is_one_sentence_without_a_traceback(capsys):
    assert failing(BrokerUnavailable("nobody answers at amqp://user:secret@host/\x1b[2J")) == 69
    said = capsys.readouterr()
    assert said.err == "carom: nobody answers at amqp://***@host/\\x1b[2J\n"
    assert said.out == ""


def test_an_error_is_an_object_on_stdout_for_programs(capsys):
    failing(Unroutable("no queue"), as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "error": {"type": "Unroutable", "message": "no queue", "exit_code": 1},
    }


def test_an_error_nobody_expected_says_how_to_see_where(capsys):
    assert failing(LookupError("seven")) == 1
    said = capsys.readouterr().err
    assert "LookupError: seven" in said
    assert "-vv" in said
    assert "Traceback" not in said


def test_a_traceback_is_for_those_who_ask_for_it(capsys):
    failing(ConfigurationError("no amqp://a:secret@b"), verbosity=2)
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "in command" in said
    assert "secret" not in said


def test_all_errors_of_a_group_are_told_once_each(capsys):
    failing(ExceptionGroup("2 of 3", [Unroutable("a"), Unroutable("b"), Unroutable("b")]))
    assert capsys.readouterr().err == "carom: 2 of 3\n  - a\n  - b\n"


def test_ctrl_c_ends_with_130():
    assert failing(KeyboardInterrupt()) == 130


def test_clicks_own_errors_are_left_to_click():
    def command():
        raise click.UsageError("x")

    with pytest.raises(click.UsageError):
        guarded(Output(), command)


def test_quiet_keeps_sentences_to_itself_and_errors_not(capsys):
    Output(verbosity=-1).say("a sentence")
    assert capsys.readouterr().err == ""
    failing(Unroutable("x"), verbosity=-1)
    assert capsys.readouterr().err == "carom: x\n"


@pytest.mark.parametrize(
    ("variables", "is_terminal", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colour_is_for_terminals_and_for_who_wants_it(variables, is_terminal, wanted, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal
    assert output.colored(stream) is wanted


# -- log lines


def record(text, *args, level=logging.WARNING, **extra):
    return logging.getLogger("x").makeRecord("x", level, "f.py", 1, text, args, None, extra=extra)


def test_a_logged_text_cannot_pass_for_a_line_of_its_own():
    line = logs.People(color=False).format(record("one\n12:00:00 ERROR two\x1b[2J"))
    first, second = line.split("\n")
    assert first.endswith("WARNING  one")
    assert second == "    12:00:00 ERROR two\\x1b[2J"


def test_a_level_is_coloured_where_colours_are_seen():
    assert "\x1b[33mWARNING" in logs.People(color=True).format(record("x"))


def test_a_record_for_programs_has_the_facts_as_fields():
    found = json.loads(logs.Programs().format(record("a %s", "b", queue="q", attempt=2, event="Retried")))
    assert found["text"] == "a b"
    assert found["level"] == "warning"
    assert found["logger"] == "x"
    assert (found["queue"], found["attempt"], found["event"]) == ("q", 2, "Retried")
    assert found["time"].endswith("+00:00")


def test_a_record_for_programs_has_its_trace():
    try:
        {}["seven"]
    except KeyError:
        one = logging.getLogger("x").makeRecord("x", logging.ERROR, "f.py", 1, "t", (), sys.exc_info())
    assert "KeyError: 'seven'" in json.loads(logs.Programs().format(one))["trace"]


def test_a_record_is_one_line_of_json_whatever_is_in_it():
    circle = []
    circle.append(circle)
    for value in (object(), circle, "\udcff", {1: {2}}, 10**40, float("nan")):
        line = logs.Programs().format(record("x\n\udcff", fact=value))
        assert "\n" not in line
        assert json.loads(line)["level"] == "warning"


@pytest.mark.parametrize(
    ("verbosity", "ours", "others"),
    [(-9, 40, 40), (-1, 30, 30), (0, 20, 20), (1, 10, 20), (7, 10, 10)],
)
def test_verbosity_is_a_level(verbosity, ours, others, monkeypatch):
    everybody, carom_log = logging.getLogger(), logging.getLogger("carom")
    before = everybody.handlers[:], everybody.level, carom_log.level
    try:
        logs.set_up(Output(verbosity=verbosity), "text")
        assert (carom_log.level, everybody.level) == (ours, others)
    finally:
        everybody.handlers[:], level, carom_level = before
        everybody.setLevel(level)
        carom_log.setLevel(carom_level)
        logging.captureWarnings(capture=False)


# -- the program


def test_the_version_is_told():
    found = carom("--version")
    assert found.exit_code == 0
    assert found.output.startswith("carom ")


def test_the_help_names_every_command_and_the_exit_codes():
    found = carom("-h")
    assert all(name in found.output for name in ("run", "publish", "topology", "demo", "completion", "69 broker"))


def test_an_unknown_command_is_a_usage_error():
    found = carom("runn")
    assert found.exit_code == 2
    assert "No such command" in found.output


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_shell_gets_its_completion_script(shell):
    found = carom("completion", shell)
    assert found.exit_code == 0
    assert "_CAROM_COMPLETE" in found.stdout


def test_bash_gets_its_completion_script_or_a_sentence(tmp_path):
    found = real("completion", "bash", cwd=tmp_path)
    assert b"_CAROM_COMPLETE" in found.stdout or found.returncode == 1


def test_a_terminal_without_arrows_is_no_reason_to_fail(tmp_path):
    (tmp_path / "shop.py").write_text("from carom import App\napp = App()\n@app.listen('é')\ndef f(x): ...\n")
    found = real("topology", "show", "shop:app", cwd=tmp_path, PYTHONIOENCODING="latin-1")
    assert found.returncode == 0
    assert b"\\u25b6" in found.stdout
