"""What followed from what: the causation tree of records, from their headers alone, in whatever order they are met."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from leftfold.engine.step import Step
from leftfold.position import Place

__all__ = ["Node", "Trace"]

_Name = tuple[str, str]
"""A topic and an id: one id may be used for commands of several categories."""


@dataclass(eq=False)
class Node:
    """One step of a trace with what followed from it.

    `step` is None where records name a cause that no topic holds; `again` are further records of the same id in the
    same topic, which have no effect; `dead` is why one of them was dead-lettered, by its place.
    """

    id: str
    step: Step | None = None
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    again: list[Place] = field(default_factory=list)
    dead: dict[Place, str] = field(default_factory=dict)
    is_loop: bool = False

    @property
    def after(self) -> float | None:
        """Seconds since the step before was written; None = there is none, or nobody knows when."""
        before = self.parent.step if self.parent is not None else None
        if self.step is None or before is None or not self.step.appended or not before.appended:
            return None
        return (self.step.appended - before.appended) / 1000

    def order(self) -> tuple[int, Place]:
        """What nodes are sorted by: when they were written, and where."""
        if self.step is not None:
            return self.step.appended, self.step.at
        return min((child.order() for child in self.children), default=(0, Place("", 0, 0)))


class Trace:
    """The trees that some steps make; `roots` are those that nothing caused, the earliest first."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._nodes: dict[_Name, Node] = {}
        self._by_id: dict[str, list[Node]] = {}
        self._gather(list({(step.at, step.dead): step for step in steps}.values()))
        for node in list(self._nodes.values()):
            self._hang(node)
        self.roots = sorted(self._tops(), key=Node.order)
        for node, _ in self.walk():
            node.children.sort(key=Node.order)

    def walk(self) -> Iterator[tuple[Node, int]]:
        """Every node with its depth, causes before what they caused."""
        left = [(root, 0) for root in reversed(self.roots)]
        while left:
            node, depth = left.pop()
            yield node, depth
            left += [(child, depth + 1) for child in reversed(node.children)]

    def _gather(self, steps: list[Step]) -> None:
        """One node per topic and id: of the records, the first in its partition; dead letters with what they are of."""
        homes: dict[Place, Node] = {}
        for step in sorted((s for s in steps if s.id), key=lambda s: (s.dead is not None, s.at, s.appended)):
            name = step.at.topic, step.id
            node = self._nodes.get(name)
            if node is None:
                node = self._nodes[name] = Node(step.id, step)
                self._by_id.setdefault(step.id, []).append(node)
            elif step.dead is None:
                node.again.append(step.at)
            homes[step.at] = node
        for step in steps:
            if step.dead is not None and step.at in homes:
                homes[step.at].dead[step.at] = step.dead

    def _hang(self, node: Node) -> None:
        """Puts a node under its cause, one that no topic holds if need be."""
        if node.step is None or not node.step.cause:
            return
        cause, beside = node.step.cause, node.step.beside
        parent = self._nodes.get((beside, cause))
        if parent is None:
            others = sorted((n for n in self._by_id.get(cause, ()) if n is not node), key=Node.order)
            parent = others[0] if others else Node(cause)
            self._nodes.setdefault((beside, cause), parent)
        node.parent = parent
        parent.children.append(node)

    def _tops(self) -> list[Node]:
        """The nodes without a parent, and of each loop the earliest, cut off from what it says caused it."""
        nodes = list(dict.fromkeys(self._nodes.values()))
        tops = [node for node in nodes if node.parent is None]
        seen = _below(tops)
        for node in nodes:
            if node in seen:
                continue
            first = min(_loop_above(node), key=Node.order)
            if first.parent is not None:
                first.parent.children.remove(first)
            first.parent, first.is_loop = None, True
            tops.append(first)
            seen |= _below([first])
        return tops


def _below(tops: Iterable[Node]) -> set[Node]:
    seen: set[Node] = set()
    left = list(tops)
    while left:
        node = left.pop()
        seen.add(node)
        left += node.children
    return seen


def _loop_above(node: Node) -> list[Node]:
    """The loop that a node's causes lead into."""
    met: dict[Node, int] = {}
    at: Node | None = node
    while at is not None and at not in met:
        met[at] = len(met)
        at = at.parent
    start = met[at] if at is not None else 0
    return [one for one, number in met.items() if number >= start]
