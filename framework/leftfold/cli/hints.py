"""Commands that messages tell to type, for the App that was asked for: they work as they stand."""

from __future__ import annotations

import re
from collections.abc import Sequence

from leftfold.cli.embedded import local_settings
from leftfold.cli.project import find_project
from leftfold.connection import ring
from leftfold.errors import LeftfoldError

__all__ = ["for_app", "for_servers", "spec_in"]

_OF_AN_APP = re.compile(
    r"\bleftfold ((?:run|rebuild|retry|get|explain|verify|promote|rollback|drop|log skip"
    r"|(?:state|timers|topics|reactions) [a-z]+))(?= |$)(?![^;\n]{0,200} --app)"
)
_START = re.compile(r"start(?: one| it)?(?: here)?: leftfold up|start servers with `leftfold up`")
_EMBEDDED = "embedded"


def for_app(text: str, spec: str) -> str:
    """The text, in which every command names the App that was asked for, unless it is the project's own."""
    if not spec or spec == _own():
        return text
    return _OF_AN_APP.sub(rf"leftfold \1 --app {spec}", text)


def for_servers(text: str) -> str:
    """The text, in which `leftfold up` gives way where another process keeps the servers, since `up` would refuse."""
    if "leftfold up" not in text:
        return text
    try:
        kept = ring("leftfold.local").status(local_settings().data)
    except LeftfoldError:
        return text
    if kept.keeper is None or kept.kind != _EMBEDDED:
        return text
    return _START.sub(
        f"process {kept.parent} keeps the servers here: leftfold dev starts one again by itself, "
        f"another program is to be ended and started again",
        text,
    )


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
