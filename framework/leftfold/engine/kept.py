"""How rows that Spark computes are kept in truth: whether a stream wrote them, and whether one could begin again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leftfold.engine.hole import unreachable
from leftfold.flush import Mark
from leftfold.position import Position

__all__ = ["batch_of", "no_beginning"]


def batch_of(marks: Mapping[int, Mark]) -> int | None:
    """The batch of a stream behind which all marks are; None when they are not at one, or no stream wrote them."""
    found = {mark.token.rpartition(".")[1:] for mark in marks.values()}
    dot, number = found.pop() if len(found) == 1 else ("", "")
    return int(number) if dot and number.removeprefix("-").isdecimal() else None


def no_beginning(topics: Iterable[str], starts: Position) -> str:
    """Why no stream of Spark can begin with the first event of these topics; '' when it can.

    Args:
        starts: the first offset that each partition still holds.
    """
    gone = unreachable(starts.only(topics), Position())
    if not gone:
        return ""
    first = gone[0]
    return (
        f"{first.topic}[{first.partition}] begins at offset {first.end}, and a stream, which reads no archive, would "
        f"have to begin at 0"
    )
