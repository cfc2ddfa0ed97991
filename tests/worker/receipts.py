"""Where answers are, taken together."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any

from leftfold.model.position import Position, Receipt

__all__ = ["behind"]


def behind(answers: Iterable[Any]) -> Position:
    """The position behind everything that was accepted; each answer knows that of its own partition only."""
    return reduce(or_, (answer.position for answer in answers if isinstance(answer, Receipt)), Position())
