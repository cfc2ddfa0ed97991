"""A parsed statement as plain values, so that judging it needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Node", "Part"]

Part: TypeAlias = "Node | tuple[Part, ...] | str | int | float | bool | None"


@dataclass(frozen=True)
class Node:
    """An operator or expression of a plan, or a value with parts inside one.

    Two nodes are equal when they say the same, wherever they stand in the statement.

    Args:
        kind: the name of Spark's class, such as `Aggregate`. parts: its arguments, in order.
        judged: an operator or expression, as opposed to a value such as a type. text: what the statement says there.
    """

    kind: str
    parts: tuple[Part, ...] = ()
    judged: bool = True
    text: str = field(default="", compare=False)

    def walk(self) -> Iterator[Node]:
        """This node and all nodes inside it, from the outside in; a tree may be deeper than Python's stack."""
        waiting: list[Part] = [self]
        while waiting:
            part = waiting.pop()
            if isinstance(part, Node):
                yield part
                waiting.extend(reversed(part.parts))
            elif isinstance(part, tuple):
                waiting.extend(reversed(part))

    def words(self, index: int) -> tuple[str, ...]:
        """The texts of a part that is a list of names."""
        part = self.parts[index]
        return tuple(word for word in part if isinstance(word, str)) if isinstance(part, tuple) else ()
