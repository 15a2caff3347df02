"""Failpoints do what the variable says, where it says, at the time it says.

Rule: what ends a process is tried on a process of its own.
"""

import os
import signal
import subprocess
import sys

import pytest

from carom import failpoints
from carom.failpoints import EXIT_CODE, Failpoints

PROGRAM = """
from carom import failpoints
for number in range(1, 5):
    print(number, flush=True)
    if failpoints.ARMED: failpoints.reach("here")
"""


def ran(said):
    environment = {**os.environ, failpoints.VARIABLE: said}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("said", "code", "reached"),
    [
        ("here=kill@3", -signal.SIGKILL, 3),
        ("here=kill", -signal.SIGKILL, 1),
        (" elsewhere=exit ; here=exit@2;", EXIT_CODE, 2),
        ("elsewhere=kill", 0, 4),
        ("here=kill@9", 0, 4),
        ("", 0, 4),
    ],
)
def test_a_process_ends_at_the_nth_time(said, code, reached):
    done = ran(said)
    assert (done.returncode, len(done.stdout.split())) == (code, reached)


def test_a_stopped_process_goes_on_when_it_is_told_to():
    environment = {**os.environ, failpoints.VARIABLE: "here=stop@2"}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=60)
        assert len(said.split()) == 4
    finally:
        process.kill()
        process.wait()


def test_nothing_is_armed_where_the_variable_is_unset():
    assert not Failpoints("")
    assert Failpoints("here=kill")
    Failpoints("").reach("here")


@pytest.mark.parametrize("said", ["here", "=kill", "here=explode", "here=kill@0", "here=kill@x", "here=kill@-1"])
def test_what_is_misspelt_is_refused(said):
    with pytest.raises(ValueError, match="say name=action"):
        Failpoints(said)
