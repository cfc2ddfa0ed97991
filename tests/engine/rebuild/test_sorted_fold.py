"""`rebuild --sample` reads and decodes no more than its share of a view that is keyed by its stream."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from leftfold import FoldView, memory
from leftfold.engine.rebuild.sorted_fold import OpenedRecords, UpdateSorter, partitions_for, sampled
from leftfold.engine.verify.verification import Verify
from leftfold.memory import World
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import BulkRecord, OffsetRange, ReadRecord
from leftfold.ports.flush import Checkpoint
from tests.domains.ledger import LedgerEvent, Move, Summary, app, by_owner, by_tag, summary
from tests.domains.ledger_world import NOW, live
from tests.engine.committed_log import CommittedLog

LEDGERS = 240


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with memory(app, now=NOW) as world:
        moves = [
            Move(ledger=f"l-{n}", owner=f"o-{n % 60}", amount=Decimal("1.00"), tags=(f"t-{n % 90}",))
            for _ in range(3)
            for n in range(LEDGERS)
        ]
        world.client.send_many(moves)
        yield world


@dataclass(frozen=True)
class Opened(ReadRecord):
    """A record that remembers that its value was asked for."""

    log: Watched

    def value(self) -> bytes | None:
        """Its value."""
        self.log.opened.add((self.record.partition, self.record.offset))
        return super().value()


class Watched(CommittedLog):
    """A log that remembers which partitions were read, and which values."""

    def __init__(self, world: World) -> None:
        super().__init__(world.log.reader())
        self.parts: list[int] = []
        self.opened: set[tuple[int, int]] = set()

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range."""
        self.parts.append(part.partition)
        for records in super().read(part):
            yield [Opened(record.record, self) for record in records if isinstance(record, ReadRecord)]


def sampling(world: World, view: View[Any, Any]) -> tuple[Verify, Watched]:
    """What samples a view, and the log that it reads."""
    log = Watched(world)
    return Verify(view, world.store, open_log=lambda: log, open_store=lambda: world.store), log


@pytest.mark.parametrize("share", [0.02, 0.2, 0.6])
def test_a_sample_reads_and_decodes_no_more_than_its_share(world: World, share: float) -> None:
    verify, log = sampling(world, summary)
    checkpoints = world.store.checkpoints(live(world, summary))
    found = verify.sample(live(world, summary), share)
    assert len(log.parts) == math.ceil(share * len(checkpoints)), "each of the four partitions holds about a quarter"
    each = len(list(world.events("ledgers"))) // LEDGERS
    assert len(log.opened) == found.rows * each, "the events of the sampled streams alone"
    assert 0 < found.rows <= 2 * share * LEDGERS
    assert found.differing == 0


def test_a_sample_shows_what_a_change_does_to_its_rows(world: World) -> None:
    changed = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=lambda row, event: None)
    verify, _ = sampling(world, changed)
    within = verify.sample(live(world, summary), 0.05)
    assert within.differing > 0
    assert {difference.other for difference in within.differences} == {None}


@pytest.mark.parametrize("view", [by_owner, by_tag], ids=lambda view: view.name)
def test_a_sample_of_a_sorted_view_makes_only_the_items_of_its_rows(world: World, view: View[Any, Any]) -> None:
    part = OffsetRange(
        "ledgers.events", 0, 0, world.log.reader().ends(["ledgers.events"]).next_offset("ledgers.events", 0)
    )
    records = [record for batch in CommittedLog(world.log.reader()).read(part) for record in batch]
    opened = OpenedRecords([view]).of(part, records)
    whole = list(UpdateSorter(view, 4).items(0, opened))
    mine = list(UpdateSorter(view, 4, 0.3).items(0, opened))
    assert 0 < len(mine) < len(whole)
    assert [item._replace(nth=0) for item in mine] == [i._replace(nth=0) for i in whole if sampled(i.key, 0.3)]


def test_the_partitions_of_a_sample_are_the_largest_and_hold_the_share() -> None:
    checkpoints = {bucket: Checkpoint(Position(), rows=rows) for bucket, rows in enumerate((10, 0, 60, 30))}
    chosen, within = partitions_for(0.3, checkpoints)
    assert (list(chosen), within) == ([2], 0.5)
    chosen, within = partitions_for(0.8, checkpoints)
    assert (list(chosen), round(within, 3)) == ([2, 3], 0.889)
    empty = {0: Checkpoint(Position()), 1: Checkpoint(Position())}
    assert partitions_for(0.01, empty) == (empty, 0.01), "where there are no rows yet, all is read"
