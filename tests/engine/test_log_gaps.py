"""What a stream would have to read and a topic no longer holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from leftfold.engine.archive.archived_log import ArchivedLog, ArchivedReader
from leftfold.engine.log_gaps import cut_source, log_gap, out_of_reach, unreachable
from leftfold.engine.rebuild.planner import plan_rebuild
from leftfold.engine.views.generation_lifecycle import GenerationLifecycle
from leftfold.engine.views.generations import change, open_generation
from leftfold.engine.views.projector import Projector
from leftfold.errors import InfrastructureError, LogGap
from leftfold.memory.event_log import MemoryLog, MemoryLogReader
from leftfold.memory.views import MemoryViewStore
from leftfold.model.position import Position
from leftfold.ports.bulk import BulkRecord, OffsetRange, ReadRecord
from leftfold.ports.flush import Phase
from leftfold.ports.protocols import RawRecord
from tests.domains.ledger import Moved, by_owner
from tests.domains.shop import household_spend
from tests.engine.committed_log import CommittedLog
from tests.engine.fold_bench import FoldBench, out
from tests.planted import as_written

TOPIC = "ledgers.events"


def test_offsets_between_a_position_and_the_start_of_a_topic_are_out_of_reach() -> None:
    starts = Position({TOPIC: {0: 0, 1: 5, 2: 7}, "b.events": {0: 3}})
    assert unreachable(starts, Position({TOPIC: {0: 0, 1: 5, 2: 9}, "b.events": {0: 3}})) == []
    assert unreachable(starts, Position({TOPIC: {1: 4}, "b.events": {0: 9}})) == [
        OffsetRange(TOPIC, 1, 4, 5),
        OffsetRange(TOPIC, 2, 0, 7),
    ]


def test_a_gap_names_the_offsets_and_the_remedy() -> None:
    error = out_of_reach("v", [OffsetRange(TOPIC, 1, 4, 9)], "type this")
    assert "ledgers.events[1] no longer holds offsets 4 to 8" in str(error)
    assert str(error).endswith("type this")
    assert isinstance(log_gap(TOPIC, 1, 4, 9), LogGap)
    named = str(log_gap(TOPIC, 1, 4, 9, archive="/my backup/log"))
    assert named.endswith("leftfold log verify-archive ledgers --archive '/my backup/log'")


def test_every_partition_that_lacks_offsets_is_named_as_long_as_there_are_few() -> None:
    few = [OffsetRange("a.events", 0, 0, 10), OffsetRange("a.events", 3, 5, 9)]
    assert str(out_of_reach("v", few, "repair it")) == (
        "a gap in the log: a.events[0] no longer holds offsets 0 to 9, a.events[3] offsets 5 to 8, and Spark's stream "
        "of view v cannot read an archive; without them its rows would be wrong. repair it"
    )
    many = [OffsetRange("a.events", partition, 0, 10) for partition in range(20)]
    reported = str(out_of_reach("v", many, "repair it"))
    assert "a.events[7] offsets 0 to 9 and 12 more partitions, and Spark's" in reported
    assert "a.events[8]" not in reported
    nine = str(out_of_reach("v", many[:9], "repair it"))
    assert "a.events[7] offsets 0 to 9 and 1 more partition, and Spark's" in nine


class Shortened(CommittedLog):
    """A log that begins at an offset and ends at another, which refuses what lies before as a topic does."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high

    def partitions(self, topic: str) -> int:
        """One."""
        return 1

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """Where it ends."""
        return Position({topic: {0: self._high} for topic in topics})

    def starts(self, topics: Iterable[str]) -> Position:
        """Where it begins."""
        return Position({topic: {0: self._low} for topic in topics})

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """Those of the archive."""
        return dict.fromkeys(topics, "one")

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """Nothing but the refusal."""
        if part.start < self._low:
            raise log_gap(part.topic, part.partition, part.start, min(self._low, part.end))
        yield from ()

    def close(self) -> None:
        """Nothing is open."""


class Short:
    """An archive of one partition that ends too early."""

    place = "kept"

    def __init__(self, end: int) -> None:
        self._end = end

    def ends(self, topic: str) -> Mapping[int, int]:
        """Where it ends."""
        return {0: self._end}

    def identity(self, topic: str) -> str:
        """That of the topic."""
        return "one"

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """Nothing is read over a gap."""
        raise AssertionError(part)


@pytest.mark.parametrize(("low", "high", "lost"), [(19_711, 20_000, "0 to 19710"), (20_000, 20_000, "0 to 19999")])
def test_a_plan_over_a_gap_names_all_lost_offsets(low: int, high: int, lost: str) -> None:
    with pytest.raises(LogGap, match=f"no longer holds offsets {lost}, and no archive"):
        plan_rebuild(by_owner, Shortened(low, high), cores=1)


def test_a_plan_over_a_gap_after_the_archive_names_what_neither_holds() -> None:
    log: Any = Shortened(19_711, 20_000)
    archive: Any = Short(3)
    with pytest.raises(LogGap, match="no longer holds offsets 3 to 19710, and the archive kept"):
        plan_rebuild(by_owner, ArchivedLog(lambda: archive, lambda: log), cores=1)


def test_no_generation_is_begun_over_a_gap() -> None:
    store, log = MemoryViewStore(), MemoryLog()
    log.create(TOPIC, 3)

    def refuse(topics: Mapping[str, int]) -> None:
        raise LogGap(str(dict(topics)))

    lifecycle = GenerationLifecycle(by_owner, store, log.reader(), lambda what, details: None, check=refuse)
    with pytest.raises(LogGap, match=r"\{'ledgers.events': 3\}"):
        lifecycle.look()
    assert not store.registry(by_owner.name).generations
    # The twin: without the check there is one.
    assert GenerationLifecycle(by_owner, store, log.reader(), lambda what, details: None).look()


class Trimmed(MemoryLogReader):
    """A reader of a log whose ledgers have lost their first event."""

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        return dict.fromkeys(topics, "")

    def check(self, position: Position) -> None:
        """Refuses a position before it."""
        starts = Position({TOPIC: {0: 1}} if TOPIC in position.offsets else {})
        for gone in unreachable(starts, position):
            raise log_gap(*gone)


def test_a_view_over_a_gap_is_reported_once_and_the_others_are_folded() -> None:
    bench = FoldBench(by_owner, household_spend)
    bench.log.create(TOPIC, 4)
    projector = Projector(bench.wanted, lambda: Trimmed(bench.log), bench.store, look=0.0, report=bench.reports)
    bench.write(out("b", "h", p=1))
    bench.until(projector, lambda: bench.store.registry(household_spend.name).live != {})
    bench.write(out("c", "h", p=2))
    bench.until(projector, lambda: not projector.step(0.0))
    assert bench.rows(household_spend)["h"].total == 3
    reported = bench.reports.of("view stopped")
    assert [one["view"] for one in reported] == [by_owner.name]
    assert "ledgers.events[0] no longer holds offsets 0 to 0" in reported[0]["why"]
    assert bench.store.registry(by_owner.name).generations == {}


def test_a_view_over_a_gap_is_followed_once_another_process_has_built_it_and_reported_when_that_is_lost() -> None:
    bench = FoldBench(by_owner)
    bench.log.create(TOPIC, 4)
    projector = Projector(bench.wanted, lambda: Trimmed(bench.log), bench.store, look=0.0, report=bench.reports)
    projector.step(0.0)
    assert not projector.writers()
    built = open_generation(bench.store, by_owner, {TOPIC: 4}, Phase.SEALED)
    bench.until(projector, projector.caught_up)
    assert [writer.view for writer in projector.writers()] == [by_owner]
    change(bench.store, by_owner.name, lambda registry: registry.without(built.id))
    projector.step(0.0)
    projector.step(0.0)
    assert not projector.writers()
    assert len(bench.reports.of("view stopped")) == 2


class Deleted(Trimmed):
    """A reader that refuses what is lost as one of topics does, or as one with an archive does."""

    def __init__(self, log: MemoryLog, refuses: str) -> None:
        super().__init__(log)
        self._refuses = refuses

    def seek(self, position: Position) -> None:
        """An archive is asked for what the topic lacks."""
        if self._refuses == "seek":
            self.check(position)
        super().seek(position)

    def poll(self, limit: int, timeout: float) -> list[RawRecord]:
        """The broker refuses the first lost offset."""
        self.check(self.position())
        return super().poll(limit, timeout)


@pytest.mark.parametrize("refuses", ["poll", "seek"])
def test_a_live_view_that_stands_before_a_gap_is_reported_once_and_the_others_are_folded(refuses: str) -> None:
    bench = FoldBench(by_owner, household_spend)
    bench.log.create(TOPIC, 4)
    bench.fold(None, out("b", "h", p=1)).close()
    live = bench.live(by_owner)
    bench.log.append(TOPIC, *as_written(Moved(ledger="1", owner="ann", amount=Decimal(5)), 1))
    bench.write(out("c", "h", p=2))
    projector = Projector(
        bench.wanted, lambda: Deleted(bench.log, refuses), bench.store, look=0.0, report=bench.reports
    )
    bench.until(projector, lambda: bench.rows(household_spend)["h"].total == 3)
    bench.write(out("d", "h", p=4))
    bench.until(projector, lambda: bench.rows(household_spend)["h"].total == 7)
    reported = bench.reports.of("view stopped")
    assert [one["view"] for one in reported] == [by_owner.name]
    assert "ledgers.events[0] no longer holds offsets 0 to 0" in reported[0]["why"]
    assert not projector.caught_up()
    assert bench.live(by_owner) == live
    assert bench.rows(by_owner) == {}


def test_a_source_that_was_cut_is_named_with_both_offsets() -> None:
    error = cut_source("checkout", "orders.events", 2, 500, 20)
    assert error.exit_code == 78
    assert str(error).startswith(
        "orders.events[2] ends at 20, but its events were routed to process checkout up to offset 500"
    )


class Failing:
    """An archive of ten records, whose reader fails before the fifth once."""

    place = "/archive"

    def __init__(self) -> None:
        self.failures = [InfrastructureError("the archive does not answer")]

    def ends(self, topic: str) -> Mapping[int, int]:
        return {0: 10}

    def identity(self, topic: str) -> str:
        return ""

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        for offset in range(part.start, part.end):
            if offset == 4 and self.failures:
                raise self.failures.pop()
            yield [ReadRecord(RawRecord(TOPIC, 0, offset, b"k", b"v", (), 0))]

    def since(self, part: OffsetRange, time: int) -> int | None:
        return None


class Refusing(MemoryLogReader):
    """A reader of a topic whose first ten records are only in the archive."""

    failures: list[Exception]

    def starts(self, topics: Iterable[str]) -> Position:
        return Position({TOPIC: {0: 10}})

    def seek(self, position: Position) -> None:
        if self.failures:
            raise self.failures.pop()
        super().seek(position)


def test_a_reader_that_is_used_after_an_error_reads_what_it_has_not_handed_out() -> None:
    log, archive = MemoryLog(), Failing()
    log.create(TOPIC, 1)
    topic = Refusing(log)
    topic.failures = [InfrastructureError("the log does not answer")]
    reader = ArchivedReader(topic, lambda: archive)
    reader.seek(Position({TOPIC: {0: 0}}))
    found, errors = list[int](), list[str]()
    while archive.failures or topic.failures or reader.position().next_offset(TOPIC, 0) < 10:
        try:
            found += [record.offset for record in reader.poll(3, 0.0)]
        except InfrastructureError as error:
            errors.append(str(error))
            assert reader.position() == Position({TOPIC: {0: len(found)}})
    assert (found, errors) == (list(range(10)), ["the archive does not answer", "the log does not answer"])
