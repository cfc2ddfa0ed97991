"""The metadata of committed offsets: who committed last, and how."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from leftfold.digits import number_in

__all__ = ["CLEAN", "Left", "attempt", "new_token", "read_metadata", "started"]

CLEAN = "clean"


@dataclass(frozen=True)
class Left:
    """How the last owner left a partition.

    `suspect`: it took the partition and died before committing anything, so one of the next commands may have
    killed it. `attempts`: how often the very next command was begun alone.
    """

    token: str
    suspect: bool
    attempts: int


def new_token() -> str:
    """The metadata of a batch: random, so that a commit of unknown outcome can be recognised."""
    return f"b:{secrets.token_hex(8)}"


def started() -> str:
    """The metadata of a partition that was taken over and not yet moved."""
    return "s"


def attempt(number: int) -> str:
    """The metadata before the `number`-th lonely try of the next command."""
    return f"a:{number}"


def read_metadata(metadata: str | None) -> Left:
    """What the metadata says; an unknown one counts as a plain batch end."""
    text = metadata or ""
    if text == started():
        return Left(text, suspect=True, attempts=0)
    if text.startswith("a:") and (attempts := number_in(text[2:])) is not None:
        return Left(text, suspect=True, attempts=attempts)
    return Left(text, suspect=False, attempts=0)
