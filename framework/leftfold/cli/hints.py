"""Commands that messages tell to type, for the App that was asked for: they work as they stand."""

from __future__ import annotations

import re
from collections.abc import Sequence

from leftfold.cli.project import find_project
from leftfold.errors import LeftfoldError

__all__ = ["for_app", "spec_in"]

_OF_AN_APP = re.compile(
    r"\bleftfold ((?:run|rebuild|retry|get|explain|verify|promote|rollback|drop|log skip"
    r"|(?:state|timers|topics|reactions) [a-z]+))(?= |$)(?![^;\n]* --app)"
)


def for_app(text: str, spec: str) -> str:
    """The text, in which every command names the App that was asked for, unless it is the project's own."""
    if not spec or spec == _own():
        return text
    return _OF_AN_APP.sub(rf"leftfold \1 --app {spec}", text)


def spec_in(arguments: Sequence[str]) -> str:
    """What was said behind `--app`, '' when nothing was."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "--app":
            return following
        if word.startswith("--app="):
            return word.removeprefix("--app=")
    return ""


def _own() -> str:
    try:
        return find_project().app
    except LeftfoldError:
        return ""
