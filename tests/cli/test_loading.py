"""A reference leads to an app, or to a sentence that says why not."""

import sys

import click
import pytest

from carom import App
from carom.cli.loading import load
from carom.errors import ConfigurationError

MODULES = {
    "good": "from carom import App\napp = App(name='good')\nclass Box:\n    app = app\n",
    "factory": "from carom import App\ndef make_app(name='made'):\n    return App(name=name)\n",
    "others": (
        "number = 7\n"
        "def needs(name): ...\n"
        "def makes(): return number\n"
        "async def waits(): ...\n"
        "def fails(): raise LookupError('no settings')\n"
        "def leaves(): raise SystemExit(3)\n"
    ),
    "empty": "",
    "broken": "import json\n\nimport not_installed_anywhere\n",
    "raising": "\n\nsettings = {}\nsettings['broker']\n",
    "declared": "from carom import App\napp = App()\n@app.listen('x')\ndef handler(a, b): ...\n",
    "misspelt": "def (:\n",
    "leaving": "import sys\nsys.exit('no licence')\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    package = tmp_path / "inside"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text(MODULES["good"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {*MODULES, "inside"}:
            del sys.modules[name]


def refusal(reference, folder):
    with pytest.raises(ConfigurationError) as caught:
        load(reference, str(folder))
    return str(caught.value)


@pytest.mark.parametrize("reference", ["good:app", "good:Box.app", "inside.deep:app"])
def test_an_app_is_found_in_a_folder_that_is_not_on_the_path(reference, folder):
    assert load(reference, str(folder)).name == "good"


def test_a_function_that_makes_an_app_is_called(folder):
    assert load("factory:make_app", str(folder)).name == "made"


@pytest.mark.parametrize(
    ("reference", "advice"),
    [
        ("shop", "shop:app"),
        ("shop.py", "shop:app"),
        ("shop.py:app", "shop:app"),
        ("./src/shop.py:make", "src.shop:make"),
        ("shop:", "shop:app"),
        (":app", "shop:app"),
        ("a shop:app", "shop:app"),
        ("shop:app()", "shop:app"),
        ("", "shop:app"),
    ],
)
def test_what_is_not_written_as_a_reference_is_answered_with_how_to_write_it(reference, advice, folder):
    with pytest.raises(click.BadParameter) as caught:
        load(reference, str(folder))
    assert caught.value.message.endswith(f"such as {advice}")


def test_a_module_that_is_not_there_is_not_there(folder):
    said = refusal("goood:app", folder)
    assert "no module 'goood'" in said
    assert str(folder) in said
    assert said.endswith("did you mean 'good'?")
    assert "no module 'nothing'" in refusal("nothing.at.all:app", folder)
    assert "no module 'inside.shallow'" in refusal("inside.shallow:app", folder)


def test_a_name_that_is_not_there_is_answered_with_the_apps_that_are(folder):
    assert refusal("good:nope", folder) == "module 'good' has no 'nope'; it has good:app"
    assert "write app = App(…)" in refusal("empty:app", folder)


def test_an_import_that_fails_inside_the_module_is_told_as_that(folder):
    said = refusal("broken:app", folder)
    assert "No module named 'not_installed_anywhere'" in said
    assert "broken.py, line 3" in said
    assert "there is no module 'broken'" not in said


@pytest.mark.parametrize(
    ("name", "cause", "line"),
    [
        ("raising", "KeyError: 'broker'", "raising.py, line 4"),
        ("declared", "SignatureError: handler has 2 parameters", "declared.py, line 3"),
        ("misspelt", "SyntaxError", "misspelt.py, line 1"),
        ("leaving", "SystemExit: no licence", "leaving.py, line 2"),
    ],
)
def test_an_error_inside_the_module_is_told_with_its_line(name, cause, line, folder):
    said = refusal(f"{name}:app", folder)
    assert said.startswith(f"module '{name}' cannot be imported: {cause}")
    assert line in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("number", "is not an App but of type int"),
        ("needs", "missing a required argument: 'name'"),
        ("makes", "others:makes() does not return an App but something of type int"),
        ("waits", "is an async function"),
        ("fails", "made no app: LookupError: no settings"),
        ("leaves", "made no app: SystemExit: 3"),
    ],
)
def test_what_is_no_app_and_makes_none_is_said(name, said, folder):
    assert said in refusal(f"others:{name}", folder)


def test_a_class_that_has_no_signature_to_read_is_called(folder):
    assert "of type dict" in refusal("builtins:dict", folder)
    assert isinstance(load("carom:App", str(folder)), App)
