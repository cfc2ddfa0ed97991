"""Asks before something is done that nobody can take back."""

from __future__ import annotations

import sys

import typer

from leftfold.cli.console import note
from leftfold.cli.failures import Usage
from leftfold.printable import printable

__all__ = ["agreed"]


def agreed(question: str, *, yes: bool) -> None:
    """Goes on if the question is answered with yes, or need not be asked.

    Args:
        yes: whether `--yes` was said.

    Raises:
        Usage: nobody can be asked here. typer.Exit: 1, when the answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Usage(f"{question}\nnobody can be asked here; to go on, say --yes. Nothing was changed")
    if not typer.confirm(printable(question), err=True):
        note("nothing was changed")
        raise typer.Exit(1)
