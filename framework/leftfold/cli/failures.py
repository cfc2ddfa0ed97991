"""Errors as a user of the shell meets them: a line or two, and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from difflib import get_close_matches

import typer

from leftfold.cli.console import note, note_lines, styled
from leftfold.cli.hints import for_app, for_servers
from leftfold.errors import LeftfoldError, StaleViewError
from leftfold.veil import veiled

__all__ = ["INTERRUPTED", "Cut", "Unanswered", "Usage", "tell", "unknown"]

INTERRUPTED = 130
_USAGE = 2
_NOT_CAUGHT_UP = 4


class Usage(LeftfoldError):
    """What was typed cannot be meant."""

    exit_code = _USAGE


class Unanswered(LeftfoldError):
    """No answer in time: whoever asks again with the same id finds out."""

    exit_code = 75


class Cut(LeftfoldError):
    """An answer that is longer than it may be; what was printed is its beginning."""

    exit_code = 3


def unknown(what: str, name: str, known: Iterable[str]) -> Usage:
    """The error for a name that nobody has: it offers the nearest ones and lists all."""
    names = sorted(known)
    near = get_close_matches(name, names, n=2) or [n for n in names if n.lower() == name.lower()]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return Usage(f"there is no {what} {name!r}{hint}\nknown: {', '.join(names) or 'none'}")


def tell(error: Exception, *, whole: bool = False, app: str = "") -> int:
    """Writes an error to standard error and returns the exit code that goes with it.

    Args:
        whole: show where it comes from. app: what was said behind `--app`, which commands in its message then say, too.
    """
    if whole:
        note_lines("".join(traceback.format_exception(error)).rstrip("\n").split("\n"))
    if isinstance(error, typer.TyperException):
        return _usage(error)
    if isinstance(error, LeftfoldError):
        _say(for_servers(for_app(str(error) or type(error).__name__, app)))
        return _NOT_CAUGHT_UP if isinstance(error, StaleViewError) else error.exit_code
    _say(f"{type(error).__name__}: {veiled(str(error))}{_where(error)}")
    if not whole:
        note("this was not foreseen; to see where it comes from, set LEFTFOLD_TRACEBACK=1")
    return 1


def _usage(error: typer.TyperException) -> int:
    if error.format_message().startswith("Usage:"):
        note_lines(error.format_message().split("\n"))
        return error.exit_code
    _say(error.format_message())
    context = getattr(error, "ctx", None)
    if context is not None:
        note_lines([*context.command.get_usage(context).split("\n"), f"help: {context.command_path} --help"])
    return error.exit_code


def _say(message: str) -> None:
    """Lines behind the first are indented, so that what a message repeats cannot look like another message."""
    sys.stdout.flush()
    first, *others = message.split("\n")
    note_lines([(styled("error:", fg="red", bold=True), f" {first}"), *(f"  {other}" for other in others)])


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
