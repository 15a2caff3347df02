"""The rules of the house, held by reading the code: nothing is imported, nothing is started.

Rule: a rule is a function from one module to sentences, each naming the line, the rule and what to do; and for each
rule there is a snippet that breaks it, because a rule that cannot fail holds nothing.
"""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "src/carom/"
PURE = ("src/carom/core/", "src/carom/layouts/")
CODE = ("src/", "tests/", "bench/", "examples/", "scripts/")
OURS = (*CODE, "docs/", "requirements/", ".ci/")

MODULE_LINES, PURE_MODULE_LINES, FUNCTION_LINES, PUBLIC_NAMES, FOLDER_MODULES = 500, 300, 50, 25, 3

IMPURE_MODULES = frozenset(
    {"asyncio", "logging", "time", "random", "secrets", "socket", "os", "threading", "subprocess", "pathlib", "sqlite3"}
)
IMPURE_CALLS = frozenset({"open", "input", "now", "utcnow", "today", "uuid1", "uuid4", "getenv"})
BANNED_WORDS = frozenset({"util", "utils", "common", "helper", "helpers", "base", "manager", "managers", "abstract"})

# Who may do what the rules forbid, and why. An entry that is no longer needed fails too.
MAY_ASSERT = {"src/carom/testing/contracts": "a contract is a test suite that its users run"}
MAY_PRINT = {"src/carom/cli/": "the command line is where people read"}
MAY_SLEEP: dict[str, str] = {}
MAY_BE_SMALL = {
    "src/carom/integrations/django/management": "Django looks for commands there",
    "src/carom/integrations/django/management/commands": "Django looks for commands there",
    "src/carom/integrations/django/migrations": "Django looks for migrations there",
    "src/carom/brokers": "the adapter for RabbitMQ joins the embedded broker",
    "src/carom/observers": "metrics and traces join the log",
}


@dataclass(frozen=True)
class Module:
    """A file of Python: where it is, what it says, and how Python reads it."""

    path: str
    source: str
    tree: ast.Module

    @classmethod
    def read(cls, path: str, source: str | None = None) -> Module:
        text = (ROOT / path).read_text(encoding="utf-8") if source is None else source
        return cls(path, text, ast.parse(text))

    def nodes(self, *kinds: type) -> Iterator[ast.AST]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    def at(self, node: ast.AST, sentence: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {sentence}"


Rule = Callable[[Module], Iterator[str]]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def called(node: ast.Call) -> str:
    """Name what is called as it is written: ``time.sleep``, ``print``."""
    return ast.unparse(node.func)


def imported(module: Module) -> Iterator[tuple[ast.AST, str]]:
    for node in module.nodes(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node, node.module or ""


def comments(module: Module) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


# What every module of the package keeps to.


def modules_stay_under_their_ceiling(module: Module) -> Iterator[str]:
    ceiling = PURE_MODULE_LINES if module.path.startswith(PURE) else MODULE_LINES
    lines = module.source.count("\n")
    if lines > ceiling:
        yield f"{module.path}: {lines} lines, the ceiling is {ceiling}: split it by what it is about"


def functions_stay_under_their_ceiling(module: Module) -> Iterator[str]:
    for node in module.nodes(*FUNCTIONS):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES:
            yield module.at(node, f"{node.name} has {lines} lines, the ceiling is {FUNCTION_LINES}: name its parts")


def packages_show_few_names(module: Module) -> Iterator[str]:
    if not module.path.endswith("__init__.py"):
        return
    names: set[str] = set()
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = set(ast.literal_eval(node.value))
            break
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names if getattr(node, "module", "") != "__future__"}
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            names.add(node.name)
    public = {name for name in names if not name.startswith("_")}
    if len(public) > PUBLIC_NAMES:
        yield f"{module.path}: {len(public)} public names, the ceiling is {PUBLIC_NAMES}: leave some in their modules"


def core_and_layouts_are_pure(module: Module) -> Iterator[str]:
    if not module.path.startswith(PURE):
        return
    advice = "core and layouts only decide; time, ids and randomness are arguments, waiting belongs in the runtime"
    for node in module.nodes(ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef):
        yield module.at(node, f"it waits: {advice}")
    for node, name in imported(module):
        top = name.partition(".")[0]
        if top in IMPURE_MODULES or (top not in sys.stdlib_module_names and top != "carom"):
            yield module.at(node, f"it imports {name}: {advice}")
    for node in module.nodes(ast.Call):
        if called(node).rpartition(".")[2] in IMPURE_CALLS:
            yield module.at(node, f"it calls {called(node)}: {advice}")


def names_say_what_a_thing_is(module: Module) -> Iterator[str]:
    def banned(name: str) -> set[str]:
        return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)} & BANNED_WORDS

    advice = "says nothing about what it is; name it for what it does"
    for part in Path(module.path).with_suffix("").parts:
        if banned(part):
            yield f"{module.path}: the name {part} {advice}"
    for node in module.nodes(*FUNCTIONS, ast.ClassDef):
        if banned(node.name):
            yield module.at(node, f"the name {node.name} {advice}")


def modules_say_their_purpose_and_their_rule(module: Module) -> Iterator[str]:
    text = ast.get_docstring(module.tree) or ""
    if len(text.split()) < 3:
        yield f"{module.path}: its docstring does not say what the module is for: write a sentence"
    elif not module.path.endswith("__init__.py") and not re.search(r"\brules?\b", text, re.IGNORECASE):
        yield f"{module.path}: its docstring names no rule: add 'Rule: ...', what must stay true in this module"


def what_is_public_is_documented(module: Module) -> Iterator[str]:
    for owner in (module.tree, *module.nodes(ast.ClassDef)):
        if getattr(owner, "name", "").startswith("_"):
            continue
        for node in owner.body:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
                decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
                if not ast.get_docstring(node) and not decorators & {"overload", "override", "setter"}:
                    yield module.at(node, f"{node.name} is public and has no docstring: say what it guarantees")


def errors_are_raised_and_not_asserted(module: Module) -> Iterator[str]:
    if not module.path.startswith(tuple(MAY_ASSERT)):
        for node in module.nodes(ast.Assert):
            yield module.at(node, "an assert vanishes under python -O: raise an error that says what to do")


def only_the_command_line_prints(module: Module) -> Iterator[str]:
    if not module.path.startswith(tuple(MAY_PRINT)):
        for node in module.nodes(ast.Call):
            if called(node) in {"print", "pprint", "sys.stdout.write", "sys.stderr.write"}:
                yield module.at(node, f"it calls {called(node)}: report an event, or return a value to who prints")


# What all code keeps to, tests and scripts too.


def every_except_says_what_it_catches(module: Module) -> Iterator[str]:
    for node in module.nodes(ast.ExceptHandler):
        if node.type is None:
            yield module.at(node, "a bare except catches cancellation and exit too: name what is expected")


def nothing_is_silenced_without_a_reason(module: Module) -> Iterator[str]:
    for line, comment in comments(module):
        found = re.search(r"\b(noqa|type:\s*ignore|pyright:\s*ignore|pragma:\s*no (?:cover|branch))\b(.*)", comment)
        if not found:
            continue
        kind, rest = found.groups()
        code = re.match(r":\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*|\[[\w, -]+\]", rest)
        reason = rest[code.end() if code else 0 :]
        if not (code or kind.startswith("pragma")) or len(re.findall(r"[A-Za-z]+", reason)) < 2:
            yield f"{module.path}:{line}: '{kind}' needs its code and, in the same comment, the reason"


def nothing_is_left_for_later(module: Module) -> Iterator[str]:
    for line, comment in comments(module):
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", comment):
            yield f"{module.path}:{line}: do it, or write it down where work is planned, not in a comment"


# What tests keep to.


def no_test_sleeps(module: Module) -> Iterator[str]:
    if not module.path.startswith(tuple(MAY_SLEEP)):
        for node in module.nodes(ast.Call):
            if called(node) in {"time.sleep", "asyncio.sleep", "sleep"} and ast.unparse(node.args[0]) != "0":
                advice = "use virtual time, wait for the event itself, or enter the file in MAY_SLEEP with a reason"
                yield module.at(node, f"a test that sleeps is slow or flaky, or both: {advice}")


def no_test_is_skipped(module: Module) -> Iterator[str]:
    for node in module.nodes(ast.Attribute):
        if re.fullmatch(r"(pytest|pytest\.mark|mark|unittest)\.(skip|skipif|xfail|importorskip)", ast.unparse(node)):
            yield module.at(node, f"{ast.unparse(node)} passes without testing: provide what is missing, or fail")


OF_THE_PACKAGE: tuple[Rule, ...] = (
    modules_stay_under_their_ceiling,
    functions_stay_under_their_ceiling,
    packages_show_few_names,
    core_and_layouts_are_pure,
    names_say_what_a_thing_is,
    modules_say_their_purpose_and_their_rule,
    what_is_public_is_documented,
    errors_are_raised_and_not_asserted,
    only_the_command_line_prints,
)
OF_ALL_CODE: tuple[Rule, ...] = (
    every_except_says_what_it_catches,
    nothing_is_silenced_without_a_reason,
    nothing_is_left_for_later,
)
OF_TESTS: tuple[Rule, ...] = (no_test_sleeps, no_test_is_skipped)


def tracked_files() -> tuple[str, ...]:
    """Name every file that belongs to the repository; without git, every file that was not made from another."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    git = shutil.which("git") and subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if git and git.returncode == 0:
        return tuple(sorted(name for name in git.stdout.split("\0") if name and (ROOT / name).is_file()))
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return tuple(sorted(str(path) for path in found if len(path.parts) == 1 or str(path).startswith(OURS)))


FILES = tracked_files()


def modules_in(*folders: str) -> tuple[Module, ...]:
    return tuple(Module.read(name) for name in FILES if name.endswith(".py") and name.startswith(folders))


def nothing_breaks(rule: Rule, modules: tuple[Module, ...]) -> None:
    assert modules, "there is nothing to read: the rule would hold for no reason"
    found = [sentence for module in modules for sentence in rule(module)]
    if found:
        pytest.fail(f"{rule.__name__.replace('_', ' ')}:\n  " + "\n  ".join(found), pytrace=False)


@pytest.mark.parametrize("rule", OF_THE_PACKAGE, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule_that(rule):
    nothing_breaks(rule, modules_in(PACKAGE))


@pytest.mark.parametrize("rule", OF_ALL_CODE, ids=lambda rule: rule.__name__)
def test_all_code_keeps_the_rule_that(rule):
    nothing_breaks(rule, modules_in(*CODE))


@pytest.mark.parametrize("rule", OF_TESTS, ids=lambda rule: rule.__name__)
def test_the_tests_keep_the_rule_that(rule):
    nothing_breaks(rule, modules_in("tests/"))


def small_folders(files: tuple[str, ...]) -> set[str]:
    """Find the packages with fewer modules, packages inside counted as one each, than a folder is worth."""
    modules = {Path(name) for name in files if name.startswith(PACKAGE) and name.endswith(".py")}
    packages = {path.parent for path in modules if path.name == "__init__.py"}
    members = {path for path in modules if path.name != "__init__.py"} | packages
    counts = {package: sum(member.parent == package for member in members) for package in packages}
    return {str(package) for package, count in counts.items() if count < FOLDER_MODULES}


def test_a_folder_is_worth_its_name():
    small = small_folders(FILES) - set(MAY_BE_SMALL)
    assert not small, f"{sorted(small)} hold fewer than {FOLDER_MODULES} modules: make each a module, or merge them"


def test_no_exception_to_a_rule_outlives_its_need():
    stale = set(MAY_BE_SMALL) - small_folders(FILES)
    allowed = (*MAY_ASSERT, *MAY_PRINT, *MAY_SLEEP)
    stale |= {prefix for prefix in allowed if not any(name.startswith(prefix) for name in FILES)}
    assert not stale, f"{sorted(stale)} no longer need their exception: remove them from the lists in {__file__}"


# Each pattern is written so that it does not find itself.
PLACES = (
    (r"/(?:root|work|home/\w+|Users/\w+)/\w", "a path of one machine"),
    (r"\b(?:pypi|pythonhosted|npmjs)\.(?:org|com)\b", "the address of a package index"),
    (r"--(?:extra-)?index-url|--find[-]links", "where packages are to be fetched from"),
    (r"\b[Ss]eeds? 0\d\d\b|\b[Ii]ssue \d+\b", "the work on the project; the repository speaks of the project alone"),
)


def places_named_in(name: str, text: str) -> Iterator[str]:
    for pattern, what in PLACES:
        for found in re.finditer(pattern, text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{name}:{line}: {found.group()!r} names {what}: leave it out"


def test_no_file_names_a_machine_or_a_package_index():
    found: list[str] = []
    for name in FILES:
        found += places_named_in(name, (ROOT / name).read_bytes().decode("utf-8", "replace"))
    assert not found, "files that are not the same everywhere:\n  " + "\n  ".join(found)


def test_the_changelog_has_a_place_for_what_comes_next():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "\n## [Unreleased]\n" in text, "CHANGELOG.md needs the heading '## [Unreleased]': changes are entered there"


IN_CORE, IN_RUNTIME, IN_TESTS = "src/carom/core/x.py", "src/carom/runtime/x.py", "tests/x.py"
BREACHES = (
    (modules_stay_under_their_ceiling, IN_CORE, "x = 1\n" * 301),
    (modules_stay_under_their_ceiling, IN_RUNTIME, "x = 1\n" * 501),
    (functions_stay_under_their_ceiling, IN_RUNTIME, "def f():\n" + "    x = 1\n" * 50),
    (packages_show_few_names, "src/carom/__init__.py", f"__all__ = {[f'name{i}' for i in range(26)]}"),
    (packages_show_few_names, "src/carom/__init__.py", "".join(f"from carom import n{i}\n" for i in range(26))),
    (core_and_layouts_are_pure, IN_CORE, "async def f(): ..."),
    (core_and_layouts_are_pure, IN_CORE, "def f():\n    import random"),
    (core_and_layouts_are_pure, IN_CORE, "from os.path import join"),
    (core_and_layouts_are_pure, "src/carom/layouts/x.py", "import msgspec"),
    (core_and_layouts_are_pure, IN_CORE, "at = datetime.now(UTC)"),
    (names_say_what_a_thing_is, "src/carom/core/utils.py", ""),
    (names_say_what_a_thing_is, IN_CORE, "class AbstractBroker: ..."),
    (names_say_what_a_thing_is, IN_CORE, "def topology_helper(): ..."),
    (modules_say_their_purpose_and_their_rule, IN_CORE, "x = 1"),
    (modules_say_their_purpose_and_their_rule, IN_CORE, '"""It does this and that."""'),
    (what_is_public_is_documented, IN_CORE, "def settle(): ..."),
    (what_is_public_is_documented, IN_CORE, 'class A:\n    """It is."""\n    async def b(self): ...'),
    (errors_are_raised_and_not_asserted, IN_CORE, "assert x"),
    (only_the_command_line_prints, IN_RUNTIME, "print(1)"),
    (every_except_says_what_it_catches, IN_TESTS, "try:\n    x\nexcept:\n    y"),
    (nothing_is_silenced_without_a_reason, IN_CORE, "x = 1  # noqa"),
    (nothing_is_silenced_without_a_reason, IN_CORE, "x = 1  # noqa: E501"),
    (nothing_is_silenced_without_a_reason, IN_CORE, "x = 1  # type: ignore  # a driver without types"),
    (nothing_is_silenced_without_a_reason, IN_CORE, "x = 1  # type: ignore[no-any-return]"),
    (nothing_is_left_for_later, IN_TESTS, "x = 1  # TODO: write this"),
    (no_test_sleeps, IN_TESTS, "time.sleep(1)"),
    (no_test_sleeps, IN_TESTS, "async def f():\n    await asyncio.sleep(0.1)"),
    (no_test_is_skipped, IN_TESTS, "@pytest.mark.skipif(True)\ndef test_x(): ..."),
    (no_test_is_skipped, IN_TESTS, "pytest.importorskip('pydantic')"),
)


@pytest.mark.parametrize(("rule", "path", "source"), BREACHES)
def test_a_rule_finds_what_breaks_it(rule, path, source):
    assert list(rule(Module.read(path, source)))


def test_test_modules_have_names_of_their_own():
    # pytest imports them by their names alone, and a run of all fails where a run of one folder does not
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


def test_every_rule_has_something_that_breaks_it():
    assert {rule for rule, _, _ in BREACHES} == {*OF_THE_PACKAGE, *OF_ALL_CODE, *OF_TESTS}


def test_no_rule_objects_to_what_is_well():
    source = (
        '"""What a message is.\n\nRule: it is frozen.\n"""\n\nimport re\n\n\n'
        'def read(base64: str) -> str:  # noqa: A001 - as in the document it follows\n    """Read it."""\n'
    )
    for rule in (*OF_THE_PACKAGE, *OF_ALL_CODE, *OF_TESTS):
        assert not list(rule(Module.read(IN_CORE, source))), rule.__name__
    assert not list(no_test_sleeps(Module.read(IN_TESTS, "await clock.sleep(5)\nawait asyncio.sleep(0)")))


def test_a_lonely_module_makes_its_folder_small():
    lonely = ("src/carom/a/__init__.py", "src/carom/a/b.py", "src/carom/a/c.py")
    assert small_folders(lonely) == {"src/carom/a"}
    assert not small_folders((*lonely, "src/carom/a/d.py"))


@pytest.mark.parametrize(
    "text", ["see /ro" + "ot/x", "from py" + "pi.org", "--find" + "-links x", "as is" + "sue 7 says"]
)
def test_a_place_is_found_wherever_it_is_named(text):
    assert list(places_named_in("x", text))
