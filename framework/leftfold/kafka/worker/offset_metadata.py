"""The metadata of a worker's committed offsets: how the last owner left a partition."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from leftfold.model.encoding import number_in

__all__ = ["CLEAN", "OffsetMetadata", "attempt", "new_token", "read_metadata", "started"]


CLEAN = "clean"


@dataclass(frozen=True)
class OffsetMetadata:
    """The metadata of a committed offset: how the last owner left the partition.

    `suspect`: the last owner died before committing anything, so one of the next commands may be a poison pill.
    `attempts`: how often the next command was tried alone.
    """

    token: str
    suspect: bool
    attempts: int


def new_token() -> str:
    """Random metadata for a batch, by which a commit of unknown outcome is recognised."""
    return f"b:{secrets.token_hex(8)}"


def started() -> str:
    """The metadata of a partition that was taken over without progress so far."""
    return "s"


def attempt(number: int) -> str:
    """The metadata written before the `number`-th try of the next command alone."""
    return f"a:{number}"


def read_metadata(metadata: str | None) -> OffsetMetadata:
    """Parses offset metadata; an unknown value counts as the end of a batch."""
    text = metadata or ""
    if text == started():
        return OffsetMetadata(text, suspect=True, attempts=0)
    if text.startswith("a:") and (attempts := number_in(text[2:])) is not None:
        return OffsetMetadata(text, suspect=True, attempts=attempts)
    return OffsetMetadata(text, suspect=False, attempts=0)
