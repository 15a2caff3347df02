"""From ``shop:app`` to the app: import the module, find the app in it, or say exactly why not.

Rule: an error inside the program is told as what it is, with its file and line, never as "not found".
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from carom.errors import ConfigurationError
from carom.runtime.app import App

_OURS = str(Path(__file__).parent.parent)


def load(reference: str, directory: str = ".") -> App:
    """Return the app of a reference. Modules in ``directory`` are found first.

    Raises click.BadParameter when it is not written as one, and ConfigurationError for everything it may lead to.
    """
    module_name, colon, attribute = reference.partition(":")
    if not colon or not _is_dotted(module_name) or not _is_dotted(attribute) or module_name.endswith(".py"):
        raise click.BadParameter(_how_to_say(reference), param_hint="APP")
    path = str(Path(directory).resolve())
    if path not in sys.path:
        sys.path.insert(0, path)
    return _app(_found(_module(module_name, path), attribute), reference)


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _how_to_say(reference: str) -> str:
    said = f"{reference!r} does not name an app: say MODULE:NAME"
    file, _, attribute = reference.partition(":")
    module = file.removesuffix(".py").strip("./").replace("/", ".")
    if _is_dotted(module) and _is_dotted(attribute or "app"):
        return f"{said}, such as {module}:{attribute or 'app'}"
    return f"{said}, such as shop:app"


def _module(name: str, directory: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(_no_module(error.name, directory)) from error
        raise ConfigurationError(f"module {name!r} cannot be imported: {_cause(error)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"module {name!r} cannot be imported: {_cause(error)}") from error


def _no_module(name: str, directory: str) -> str:
    there = sorted(path.stem for path in Path(directory).glob("*.py"))
    near = difflib.get_close_matches(name, there, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"there is no module {name!r} in {directory} nor among what is installed{hint}"


def _found(module: ModuleType, attribute: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"module {module.__name__!r} has no {attribute!r}{_instead(module)}")
        found = getattr(found, part)
    return found


def _instead(module: ModuleType) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    if apps:
        return "; it has " + " and ".join(f"{module.__name__}:{name}" for name in apps)
    return ", and no App at all: write app = App(…) in it"


def _app(found: Any, reference: str) -> App:
    if isinstance(found, App):
        return found
    if not callable(found):
        raise ConfigurationError(f"{reference} is not an App but of type {type(found).__name__}")
    if inspect.iscoroutinefunction(found):
        raise ConfigurationError(f"{reference} is an async function; a function that makes an app is a plain one")
    _check_factory(found, reference)
    try:
        made = found()
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{reference} made no app: {_cause(error)}") from error
    if isinstance(made, App):
        return made
    raise ConfigurationError(f"{reference}() does not return an App but something of type {type(made).__name__}")


def _check_factory(factory: Any, reference: str) -> None:
    try:
        inspect.signature(factory).bind()
    except ValueError:  # it has no signature to read: call it and see
        return
    except TypeError as error:
        raise ConfigurationError(
            f"{reference} is not an App, and cannot be called to make one without arguments: {error}"
        ) from error


def _cause(error: BaseException) -> str:
    """Return an error with the file and line of the user's that it comes from."""
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, SyntaxError):
        return said  # it says its own file and line
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename)]
    return f"{said} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else said


def _is_theirs(file: str) -> bool:
    return not file.startswith((_OURS, "<frozen")) and Path(importlib.__file__).parent not in Path(file).parents
