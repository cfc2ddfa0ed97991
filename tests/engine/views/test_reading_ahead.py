"""A log that fails in the middle of a batch: what was read before is folded, once."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from leftfold.engine.views.projector import Projector
from leftfold.errors import InfrastructureError
from leftfold.ports.protocols import LogReader, RawRecord
from tests.domains.shop import household_spend
from tests.engine.folding import FoldBench, out

EVENTS = 1_500


class Troubled:
    """A reader that fails once, at its third poll."""

    def __init__(self, reader: LogReader) -> None:
        self._reader, self.polls = reader, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def poll(self, limit: int, timeout: float) -> list[RawRecord]:
        self.polls += 1
        if self.polls == 3:
            raise InfrastructureError("the log is away")
        return self._reader.poll(limit, timeout)


def follow(tail: Projector) -> None:
    for _ in range(20):
        tail.step(0.0)


def test_what_was_read_before_a_failure_is_folded_once() -> None:
    bench = FoldBench(household_spend)
    for number in range(EVENTS):
        bench.write(out(f"b{number}", f"h{number % 7}", p=1))
    readers: list[Troubled] = []

    def open_log() -> Any:
        readers.append(Troubled(bench.log.reader()))
        return readers[-1]

    tail = Projector([household_spend], open_log, bench.store, look=0.0)
    with pytest.raises(InfrastructureError, match="the log is away"):
        follow(tail)
    assert max(reader.polls for reader in readers) == 3, "two polls of one batch had given records"
    follow(tail)
    tail.close()
    rows = dict(bench.views[household_spend].items())
    assert sum((row.total for row in rows.values()), Decimal(0)) == EVENTS
