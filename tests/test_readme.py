"""What the documents show is true: every fenced block is run or checked, in every Markdown file of the repository.

Rule: no block is passed over. A language or a command nobody knows how to check is a failure that says so. What a
block needs is said by a comment on the line above it, which readers do not see:

    (nothing)               python: runs as a module of its own, in an empty directory; `await` may stand at the top;
                            with functions named test_... it is run by pytest. console, sh: make targets must exist,
                            carom commands must have these subcommands and options. json, toml: must parse.
    <!-- continues -->      python: goes on where the python block before it ended
    <!-- file: shop.py -->  is saved under this name too, for the blocks and commands after it
    <!-- with harness -->   afterwards every App it made is started in a Harness and stopped
    <!-- runs -->           console, sh: the commands are really run, one after the other, and must succeed
    <!-- runs: 5 -->        the same; the last one exits with 5
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SECONDS = 60

FENCE = re.compile(
    r"(?P<notes>(?:^[ \t]*<!--[^\n]*-->[ \t]*\n(?:[ \t]*\n)?)*)"
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[^\n]*\n"
    r"(?P<text>.*?)^[ \t]*(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
PICTURES = frozenset({"text", "mermaid", "dot"})
SHELLS = frozenset({"console", "sh", "bash", "shell"})

RUN_A_BLOCK = """
import ast, asyncio, inspect, sys, types
name, harness = sys.argv[1:]
module = sys.modules["example"] = types.ModuleType("example")
code = compile(sys.stdin.read(), name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
result = eval(code, vars(module))
if inspect.iscoroutine(result):
    asyncio.run(result)

async def start_and_stop(app):
    async with Harness(app):
        pass

if harness:
    from carom import App
    from carom.testing import Harness
    apps = [value for value in vars(module).values() if isinstance(value, App)]
    if not apps:
        sys.exit("it makes no App to start in a Harness: remove the comment above it")
    for app in apps:
        asyncio.run(start_and_stop(app))
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text without the indent, the line it starts at, what is said above it."""

    language: str
    text: str
    line: int
    notes: dict[str, str] = field(default_factory=dict)


def blocks(document: str) -> Iterator[Block]:
    for found in FENCE.finditer(document):
        notes = (note.partition(":") for note in re.findall(r"<!--(.*?)-->", found["notes"]))
        text = re.sub(f"^{re.escape(found['indent'])}", "", found["text"], flags=re.MULTILINE)
        line = document.count("\n", 0, found.start("text")) + 1
        yield Block(found["language"], text, line, {name.strip(): value.strip() for name, _, value in notes})


def commands(block: Block) -> Iterator[str]:
    """Take the commands of a block: lines after ``$`` in a console, every line but comments in a script."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    yield from (line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def run(arguments: list[str], where: Path, text: str = "", expected: int = 0) -> str:
    """Run a program in a directory and say what is wrong with how it ended, or nothing."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            arguments,
            cwd=where,
            input=text,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {SECONDS} s"
    if done.returncode == expected:
        return ""
    return f"exited with {done.returncode} and not {expected}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


class Reader:
    """Somebody who tries everything a document shows, from top to bottom, in one empty directory."""

    def __init__(self, name: str, where: Path) -> None:
        self.name = name
        self.where = where
        self.python = ""
        self.tried = 0

    def try_all(self, document: str) -> list[str]:
        wrong = []
        for block in blocks(document):
            self.tried += 1
            wrong += [f"{self.name}:{block.line}: {problem}" for problem in self.try_block(block) if problem]
        return wrong

    def try_block(self, block: Block) -> Iterator[str]:
        unknown = set(block.notes) - {"continues", "file", "with harness", "runs"}
        if unknown:
            yield f"nobody knows what the comment {sorted(unknown)} asks for; see the docstring of {__file__}"
        if "file" in block.notes:
            (self.where / block.notes["file"]).write_text(block.text, encoding="utf-8")
        if block.language == "python":
            yield self.try_python(block)
        elif block.language in SHELLS and "runs" in block.notes:
            yield from self.run_commands(block)
        elif block.language in SHELLS:
            yield from (check_command(command, self.where) for command in commands(block))
        elif block.language in {"json", "toml"}:
            yield parse(block)
        elif block.language not in PICTURES:
            yield f"nobody knows how to check the language {block.language!r}: use 'text', or teach {__file__}"

    def try_python(self, block: Block) -> str:
        here = self.python if "continues" in block.notes else ""
        self.python = here + "\n" * (block.line - 1 - here.count("\n")) + block.text  # tracebacks name its lines
        if re.search(r"^(async )?def test_", block.text, re.MULTILINE):
            (self.where / "test_example.py").write_text(self.python, encoding="utf-8")
            return run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"], self.where)
        harness = "yes" if "with harness" in block.notes else ""
        return run([sys.executable, "-W", "error", "-c", RUN_A_BLOCK, self.name, harness], self.where, self.python)

    def run_commands(self, block: Block) -> Iterator[str]:
        listed = list(commands(block))
        for number, command in enumerate(listed, start=1):
            expected = int(block.notes["runs"] or 0) if number == len(listed) else 0
            problem = run(["sh", "-c", command], self.where, expected=expected)
            if problem:
                yield f"{command}: {problem}"
                return


def parse(block: Block) -> str:
    try:
        {"json": json.loads, "toml": tomllib.loads}[block.language](block.text)
    except ValueError as error:
        return f"this is not {block.language}: {error}"
    return ""


def check_command(line: str, where: Path) -> str:
    """Say what is wrong with a command that is shown but not run."""
    words: list[str] = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for word in [*lexer, "|"]:
        if word not in {"|", "||", "&&", ";", "&"}:
            words.append(word)
            continue
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):  # VARIABLE=value before a command
            words.pop(0)
        if words:
            program, *arguments = words
            check = PROGRAMS.get(program.removeprefix(".venv/bin/"), no_rule)
            problem = check(arguments, where)
            if problem:
                return f"{line}: {problem}"
        words = []
    return ""


def no_rule(_arguments: list[str], _where: Path) -> str:
    return f"nobody knows how to check this command: teach PROGRAMS in {__file__}, or have the block run"


def nothing_to_check(_arguments: list[str], _where: Path) -> str:
    return ""


def check_make(arguments: list[str], _where: Path) -> str:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    missing = {target for target in arguments if "=" not in target} - known
    return f"the Makefile has no target {sorted(missing)}" if missing else ""


def check_carom(arguments: list[str], where: Path) -> str:
    """Ask for help with these very words: unknown subcommands and options are refused before help is given."""
    return run([sys.executable, "-m", "carom", *(word for word in arguments if word not in "<>"), "--help"], where)


def check_pip(arguments: list[str], _where: Path) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name for word in arguments for name in re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*)\]", word)))}
    missing = extras - set(project["optional-dependencies"])
    return f"carom has no extra {sorted(missing)}" if missing else ""


def check_python(arguments: list[str], where: Path) -> str:
    """Look whether the module or the file is there, in the repository or saved by a block before."""
    match arguments:
        case ["-m", "carom", *rest]:
            return check_carom(rest, where)
        case ["-m", "bench", name, *_] if not name.startswith("-"):
            wanted = f"bench/{name}.py"
        case ["-m", module, *_]:
            return "" if importlib.util.find_spec(module) else f"there is no module {module}"
        case [wanted, *_]:
            pass
        case _:
            return ""
    there = any((place / wanted).exists() for place in (ROOT, ROOT / "src", where))
    return "" if there else f"there is no {wanted}"


def check_pytest(arguments: list[str], _where: Path) -> str:
    paths = [word.partition("::")[0] for word in arguments if "/" in word]
    missing = [path for path in paths if not (ROOT / path).exists()]
    return f"there is no {missing}" if missing else ""


PROGRAMS: dict[str, Callable[[list[str], Path], str]] = {
    "make": check_make,
    "carom": check_carom,
    "pip": check_pip,
    "python": check_python,
    "python3": check_python,
    "pytest": check_pytest,
    "ruff": nothing_to_check,
    "git": nothing_to_check,
    "cd": nothing_to_check,
    "echo": nothing_to_check,
    "export": nothing_to_check,
    "cat": nothing_to_check,
    ".ci/run": nothing_to_check,
}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_everything_the_document_shows_works(path, tmp_path):
    wrong = Reader(str(path.relative_to(ROOT)), tmp_path).try_all(path.read_text(encoding="utf-8"))
    assert not wrong, "\n".join(wrong)


def test_the_readme_shows_a_program_and_a_command():
    shown = {block.language for block in blocks((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert "python" in shown
    assert shown & SHELLS


def fenced(language: str, text: str, note: str = "") -> str:
    return f"{note}\n```{language}\n{text}\n```\n"


GOOD = (
    fenced("python", "import asyncio\nawait asyncio.sleep(0)"),
    fenced("python", "x = 1") + fenced("python", "assert x == 1", "<!-- continues -->"),
    fenced("python", "x = 1", "<!-- file: shop.py -->") + fenced("python", "from shop import x"),
    fenced("python", "from pathlib import Path\nassert not list(Path().iterdir())"),
    fenced("python", "def test_a_claim():\n    assert True"),
    fenced("console", "$ make test\nwhat it prints is not compared"),
    fenced("sh", "# a comment\ngit clone https://example.org/carom && cd carom\nmake demo"),
    fenced("sh", "echo hello > there\ncat there", "<!-- runs -->"),
    fenced("sh", "exit 5", "<!-- runs: 5 -->"),
    fenced("text", "anything at all"),
    fenced("json", '{"a": 1}'),
    "- in a list\n\n  ```python\n  x = 1\n  ```\n",
)
BAD = (
    fenced("python", "raise ValueError('no')"),
    fenced("python", "x = 1") + fenced("python", "print(x)"),
    fenced("python", "import asyncio\nawait asyncio.sleep(0)\nawait asyncio.nothing()"),
    fenced("python", "def test_a_claim():\n    assert False"),
    fenced("python", "import warnings\nwarnings.warn('old', DeprecationWarning)"),
    fenced("python", "x = 1", "<!-- with harness -->"),
    fenced("python", "x = 1", "<!-- skip -->"),
    fenced("console", "$ make coffee"),
    fenced("console", "$ carom nosuchcommand"),
    fenced("sh", "unheard-of --of"),
    fenced("sh", "echo one | unheard-of"),
    fenced("sh", "pip install 'carom[nosuchextra]'"),
    fenced("sh", "python nosuchfile.py"),
    fenced("sh", ".venv/bin/pytest tests/nosuchfile.py"),
    fenced("sh", "false\ntrue", "<!-- runs -->"),
    fenced("json", "{"),
    fenced("cobol", "STOP RUN."),
    fenced("", "what is this?"),
)


@pytest.mark.parametrize("document", GOOD)
def test_a_block_that_works_is_well(document, tmp_path):
    reader = Reader("GOOD.md", tmp_path)
    assert reader.try_all(document) == []
    assert reader.tried == document.count("```") / 2


@pytest.mark.parametrize("document", BAD)
def test_a_block_that_does_not_work_is_named_by_its_line(document, tmp_path):
    wrong = Reader("BAD.md", tmp_path).try_all(document)
    assert len(wrong) == 1
    assert re.match(r"BAD\.md:\d+: .", wrong[0])
