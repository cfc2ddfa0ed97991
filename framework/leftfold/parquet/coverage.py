"""Which files to read, and how much of each, to get every record of a partition once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from leftfold.parquet.manifest import Span

__all__ = ["Piece", "end_of", "pieces_of"]


class Piece(NamedTuple):
    """The part of a span, from `start` to `end`, that no piece before it holds."""

    span: Span
    start: int
    end: int


def pieces_of(spans: Iterable[Span]) -> list[Piece]:
    """Pieces that lie against each other without gap or overlap, from offset 0 as far as they go.

    Args:
        spans: of one partition, by start, the longest first.
    """
    pieces: list[Piece] = []
    at = 0
    for span in spans:
        if span.start > at:
            break
        if span.end > at:
            pieces.append(Piece(span, at, span.end))
            at = span.end
    return pieces


def end_of(pieces: list[Piece]) -> int:
    """The first offset that the pieces do not hold."""
    return pieces[-1].end if pieces else 0
