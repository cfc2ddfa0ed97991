"""Where answers are, taken together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from leftfold.model.position import Position, Receipt

__all__ = ["behind"]


def behind(answers: Iterable[Any]) -> Position:
    """The position behind everything that was accepted; each answer knows that of its own partition only."""
    return Position.union(answer.position for answer in answers if isinstance(answer, Receipt))
