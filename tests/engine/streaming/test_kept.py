"""How rows that Spark computes are kept, as checkpoints and topics tell it."""

from __future__ import annotations

import pytest

from leftfold.engine.streaming.computed_rows import batch_of, no_beginning, token
from leftfold.model.position import Position
from leftfold.ports.flush import Checkpoint


def checkpoints(*tokens: str) -> dict[int, Checkpoint]:
    return {bucket: Checkpoint(Position(), token=token) for bucket, token in enumerate(tokens)}


@pytest.mark.parametrize(
    ("tokens", "batch"),
    [
        ([token("ab12", 7)] * 3, 7),
        ([token("ab12", -1)] * 3, -1),
        ([token("ab12", 7), token("cd34", 7)], 7),
        ([token("ab12", 7), token("ab12", 8)], None),
        (["0123456789abcdef", "fedcba9876543210"], None),
        (["1234567890123456"] * 2, None),
        ([], None),
    ],
)
def test_marks_tell_at_which_batch_of_a_stream_they_are(tokens: list[str], batch: int | None) -> None:
    assert batch_of(checkpoints(*tokens)) == batch


def test_a_stream_can_begin_only_where_its_topics_begin_at_nought() -> None:
    starts = Position({"a.events": {0: 0, 1: 40}, "b.events": {0: 0}, "c.events": {0: 9}})
    assert no_beginning(["b.events"], starts) == ""
    assert no_beginning(["a.events", "b.events"], starts) == (
        "a.events[1] begins at offset 40, and a stream, which reads no archive, would have to begin at 0"
    )
