"""How far a consumer of Faust's has come, partition by partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from faust.types import TP

from leftfold.errors import InfrastructureError

__all__ = ["OrderedProgress", "Progress"]


class Progress:
    """How far the partitions are read: `position` of each after its last fetch, and which records are not done.

    Faust reads some records twice when its tables are restored, and hands on what it has handed on no more: what is
    done stays done.
    """

    def __init__(self) -> None:
        self.position: dict[TP, int] = {}
        self._open: dict[TP, set[int]] = {}
        self._done: dict[TP, set[int]] = {}
        self._through: dict[TP, int] = {}

    def fetched(self, positions: Mapping[TP, int], records: Mapping[TP, list[Any]]) -> None:
        """A fetch brought these records, and left the consumer at these positions."""
        for tp, found in records.items():
            through = self._through[tp] = max(self._through.get(tp, 0), self.frontier(tp) or 0)
            done = self._done[tp] = {offset for offset in self._done.get(tp, ()) if offset >= through}
            offsets = {record.offset for record in found if record.offset >= through}
            self._open.setdefault(tp, set()).update(offsets - done)
        self.position.update(positions)

    def done(self, tp: TP, offset: int) -> bool:
        """This record is routed; False when it was fetched before partitions came and went."""
        if offset not in (still := self._open.get(tp, set())):
            return False
        still.remove(offset)
        self._done.setdefault(tp, set()).add(offset)
        return True

    def is_through(self, tp: TP, end: int) -> bool:
        """Whether everything before `end` is read and routed."""
        return self.position.get(tp, -1) >= end and not self._open.get(tp)

    def frontier(self, tp: TP) -> int | None:
        """The first offset that is not routed yet; None when nothing has been fetched."""
        return min(self._open[tp]) if self._open.get(tp) else self.position.get(tp)

    def frontier_without(self, tp: TP, done: Collection[int]) -> int | None:
        """The `frontier` once these records are done, too."""
        still = self._open.get(tp, set()).difference(done)
        return min(still) if still else self.position.get(tp)

    def forget(self) -> None:
        """Partitions come and go: what is not fetched anew is not known."""
        for known in (self.position, self._open, self._done, self._through):
            known.clear()


class OrderedProgress(Progress):
    """Progress of somebody who says what is `began`, so that nothing that was fetched is passed over."""

    def __init__(self) -> None:
        super().__init__()
        self._awaited: dict[TP, deque[int]] = {}

    def fetched(self, positions: Mapping[TP, int], records: Mapping[TP, list[Any]]) -> None:
        """A fetch brought these records; what it brought again is awaited once."""
        super().fetched(positions, records)
        for tp, found in records.items():
            if found:
                awaited = self._awaited.setdefault(tp, deque())
                while awaited and awaited[-1] >= found[0].offset:
                    awaited.pop()
                awaited.extend(record.offset for record in found)

    def began(self, tp: TP, offset: int) -> None:
        """This record is about to be routed.

        Raises:
            InfrastructureError: one before it was fetched and never handed on. Whoever wrote the input behind it would
                lose it: an instance takes what comes from further back for something that was there.
        """
        awaited = self._awaited.get(tp)
        if not awaited or offset < awaited[0]:
            return
        if offset > awaited[0]:
            raise InfrastructureError(
                f"{tp.topic}[{tp.partition}]@{offset} came before @{awaited[0]}; the router begins again from there"
            )
        awaited.popleft()

    def forget(self) -> None:
        """Partitions come and go: nothing is awaited of those before."""
        super().forget()
        self._awaited.clear()
