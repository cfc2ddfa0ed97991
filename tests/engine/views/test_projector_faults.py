"""Projectors whose store fails at any moment, with folds that fail, too: at the end nothing is lost and nothing double.

The oracle is one projector without trouble on the same log.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from leftfold import FoldView, SpreadView, View
from leftfold.engine.views import projector
from leftfold.engine.views import shared_subscription as group
from leftfold.engine.views.generations import open_generation
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.engine.views.projector import Projector
from leftfold.errors import InfrastructureError
from leftfold.memory import MemoryViewStore
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Landed, Phase, Snapshot
from tests.domains.shop import CheckedOut, household_of
from tests.engine.fold_bench import TOPIC, FoldBench

ROUNDS, STEP_SECONDS = 2_000, 0.02
"""Of steps of every projector: within these all of them have come to rest, though some wait before they try again."""


@dataclass(frozen=True)
class Row:
    total: Decimal
    name: str


def add(row: Row | None, event: CheckedOut) -> Row | None:
    if row is not None and row.total.is_nan():
        return row  # once it cannot be stored it stays so, or it would depend on flushes whether anybody notices
    match event.lines[0][0]:
        case "failing":
            raise ValueError("a fold that fails")
        case "unstorable":
            return Row(Decimal("NaN"), "x")
        case "removing":
            return None
        case _:
            return Row((row.total if row else Decimal(0)) + event.total, event.household)


def total(row: Row | None, event: CheckedOut) -> Row:
    return Row((row.total if row else Decimal(0)) + event.total, "household")


def twice(event: CheckedOut) -> Iterable[tuple[str, Decimal]]:
    return [(event.household, event.total), (event.basket_id, event.total), (event.household, event.total)]


def collect(row: Row | None, item: Decimal) -> Row:
    return Row((row.total if row else Decimal(0)) + item, "touched")


by_basket = FoldView("by_basket", events=CheckedOut, row=Row, evolve=add, indexes=("total", "name"))
by_household = FoldView("by_household", events=CheckedOut, row=Row, key=household_of, evolve=total, indexes=("total",))
touched = SpreadView("touched", events=CheckedOut, row=Row, each=twice, evolve=collect)
VIEWS: tuple[View[Any, Any], ...] = (by_basket, by_household, touched)


class Unasked:
    """A flush of unknown outcome."""

    def landed(self) -> bool:
        raise InfrastructureError("the store is not reachable")


class Troubled(MemoryViewStore):
    """Fails before, in and behind flushes and reads, now and then, and checks that no flush takes a bucket back."""

    def __init__(self, chance: random.Random, share: float) -> None:
        super().__init__()
        self._chance, self.share = chance, share

    def begin_flush(self, flushes: Sequence[BucketFlush]) -> Any:
        if self._chance.random() >= self.share:
            return Landed(self.flush(flushes))
        trouble = self._chance.choice(["refused", "lost", "lost but written", "unknown", "unknown but written"])
        if trouble == "refused":
            raise InfrastructureError("the store is not reachable")
        if trouble.endswith("written"):
            self.flush(flushes)
        return Landed(written=False) if trouble.startswith("lost") else Unasked()

    def flush(self, flushes: Sequence[BucketFlush]) -> bool:
        before = {flush.bucket: self.checkpoints(flush.generation).get(flush.bucket) for flush in flushes}
        written = super().flush(flushes)
        for flush in flushes if written else ():
            checkpoint = before[flush.bucket]
            assert checkpoint is not None
            assert flush.checkpoint.position.covers(checkpoint.position), "a mark went back"
        return written

    def read_all(self, asked: Sequence[tuple[Generation, Sequence[tuple[int, str]]]]) -> list[Snapshot]:
        if self._chance.random() < self.share / 3:
            raise InfrastructureError("the store is not reachable")
        return super().read_all(asked)


class Trouble:
    """A bench whose projectors are stepped, and whose log is written, at random."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = chance = random.Random(seed)
        self.seconds = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.seconds, sleep=lambda seconds: None)
        for module in (projector, group):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(projector, "random", chance)
        self.bench = FoldBench(*VIEWS)
        self.store = self.bench.store = Troubled(chance, chance.choice([0.05, 0.3]))
        monkeypatch.setattr(group, "FLUSH_ROWS", chance.choice([1, 3, 10, 1000]))
        monkeypatch.setattr(
            projector, "ProjectionWriter", partial(ProjectionWriter, most=chance.choice([0, 1, 3, 1000]))
        )
        self.projectors = [
            self.bench.projector(
                member=f"projector {n}", lease=60.0, batch=chance.choice([1, 3, 10]), growth=chance.choice([1, 2, 64]),
                max_parked=1000,
            )
            for n in range(chance.choice([1, 2, 3]))
        ]  # fmt: skip

    def happen(self) -> None:
        """Anything at all."""
        match self.chance.choices(["write", "work", "rebuild"], [0.5, 0.47, 0.03])[0]:
            case "write":
                for _ in range(self.chance.choice([1, 5, 20])):
                    self._decide()
            case "work":
                self.step(self.chance.choice(self.projectors))
            case _:
                view = self.chance.choice(VIEWS)
                there = self.store.registry(view.name).generations.values()
                if 0 < len(there) < 3:
                    open_generation(self.store, view, next(iter(there)).topics, Phase.SEALED)

    def step(self, projector: Projector) -> None:
        self.seconds += STEP_SECONDS
        with suppress(InfrastructureError):
            projector.step(0.0)

    def settle(self) -> None:
        """Everybody works, without trouble, until every generation of every view is at the end."""
        self.store.share = 0.0
        ends = self.bench.log.reader().ends([TOPIC])
        for _ in range(ROUNDS):
            if self.live() and all(m.position.covers(ends_of_bucket(g, n, ends)) for g, n, m in self.checkpoints()):
                return
            for one in self.projectors:
                self.step(one)
        raise AssertionError(self.bench.reports)

    def live(self) -> bool:
        return all(self.store.registry(view.name).live_of(view.hash) for view in VIEWS)

    def checkpoints(self) -> Iterator[tuple[Generation, int, Checkpoint]]:
        """The checkpoints of every generation, one generation after another as they are asked for."""
        for view in VIEWS:
            for generation in self.store.registry(view.name).generations.values():
                for bucket, checkpoint in self.store.checkpoints(generation).items():
                    yield generation, bucket, checkpoint

    def _decide(self) -> None:
        basket, chance = f"b{self.chance.randrange(12)}", self.chance
        kinds = chance.choices(["sold", "failing", "unstorable", "removing"], [12, 1, 1, 2], k=chance.choice([1, 1, 3]))
        events = [
            CheckedOut(
                basket_id=basket, household=f"h{chance.randrange(6)}", total=Decimal(chance.randrange(1, 9)),
                lines=((kind, Decimal(1)),),
            )
            for kind in kinds
        ]  # fmt: skip
        self.bench.write(*events, ce_time=b"2026-01-%02dT00:00:00Z" % chance.randrange(1, 28))


def ends_of_bucket(generation: Generation, bucket: int, ends: Any) -> Any:
    return ends.only(generation.topics, bucket if generation.stream_keyed else None)


def contents(store: MemoryViewStore, generation: Generation) -> dict[int, Any]:
    """Everything that a generation holds, by bucket, but the names of flushes."""
    found = {}
    for number, checkpoint in store.checkpoints(generation).items():
        bucket = store.bucket(generation, number)
        assert bucket is not None
        entries = {key: dict(values) for key, values in bucket.indexed.items()}
        rows = {key: dict(fields) for key, fields in bucket.rows.items()}
        found[number] = rows, entries, replace(checkpoint, token="", phase=Phase.LIVE, parked=dict(checkpoint.parked))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_after_any_faults_every_generation_equals_that_of_one_undisturbed_projector(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble(seed, monkeypatch)
    for _ in range(80):
        trouble.happen()
    trouble.settle()
    monkeypatch.undo()
    quiet = FoldBench(*VIEWS)
    quiet.log = trouble.bench.log
    quiet.settle()
    for view in VIEWS:
        wanted = contents(quiet.store, quiet.live(view))
        for generation in trouble.store.registry(view.name).generations.values():
            assert contents(trouble.store, generation) == wanted, f"{view.name} {generation.id}"


def test_twin_where_a_failed_flush_counts_as_sent_events_are_lost_or_folded_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rewind = ProjectionWriter.rewind

    def careless(self: ProjectionWriter) -> None:
        """Only rows that cannot be encoded are folded again."""
        rewind(self) if self._unstorable else self._fold.skip(self.checkpoints)

    monkeypatch.setattr(ProjectionWriter, "rewind", careless)
    with monkeypatch.context() as inner, pytest.raises(AssertionError, match="^by_basket "):
        test_after_any_faults_every_generation_equals_that_of_one_undisturbed_projector(0, inner)
