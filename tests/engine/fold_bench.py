"""A log, a store, projectors and micro-batches over memory, with events written straight into the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain
from typing import Any

from leftfold import Event, View
from leftfold.client import Views
from leftfold.engine.streaming.microbatch import MicroBatchDriver
from leftfold.engine.streaming.microbatch_task import BatchResult, MicroBatchTask
from leftfold.engine.views.projector import Projector
from leftfold.memory import MemoryLog, MemoryViewStore
from leftfold.model.keys import partition_of
from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation
from leftfold.ports.message_codec import MessageCodec
from leftfold.ports.protocols import RawRecord, ViewStore
from tests.domains.shop import CheckedOut, baskets, household_spend, open_baskets, product_sales
from tests.engine.committed_log import CommittedLog
from tests.planted import as_written
from tests.reports import Reports
from tests.waiting import step_until

PARTITIONS = 4
TOPIC = "baskets.events"
VIEWS: tuple[View[Any, Any], ...] = (open_baskets, household_spend, product_sales)


def out(basket: str, household: str, **prices: int) -> CheckedOut:
    """A checkout of products at prices."""
    lines = tuple((product, Decimal(price)) for product, price in prices.items())
    return CheckedOut(basket_id=basket, household=household, total=sum((p for _, p in lines), Decimal(0)), lines=lines)


class FoldBench:
    """`write` appends decisions; `settle` lets a projector fold them; `views` reads."""

    def __init__(self, *views: View[Any, Any]) -> None:
        self.wanted = views or VIEWS
        self.log, self.store = MemoryLog(), MemoryViewStore()
        self.log.create(TOPIC, PARTITIONS)
        self.views = Views(self.store, lambda seconds: None)
        self.reports = Reports()
        self._codec: MessageCodec[Any] = MessageCodec(baskets.events)
        self._versions: dict[str, int] = {}

    def write(self, *events: Event, **headers: bytes) -> list[RawRecord]:
        """Appends one decision; headers by name replace what it would have had."""
        written = []
        for index, event in enumerate(events):
            key = str(getattr(event, type(event).__leftfold__.key))
            self._versions[key] = self._versions.get(key, 0) + 1
            number, place = b"%d" % self._versions[key], b"%d/%d" % (index + 1, len(events))
            replaced = {"ce_id": b"e", "ce_sequence": number, "ce_decision": place, **headers}
            written.append(self.log.append(TOPIC, *as_written(event, PARTITIONS, **replaced)))
        return written

    def raw(self, key: bytes | None, value: bytes | None, **headers: bytes) -> RawRecord:
        """Appends any record at all to the partition of its key."""
        return self.log.append(TOPIC, partition_of(key or b"", PARTITIONS), key, value, list(headers.items()))

    def projector(self, **options: Any) -> Projector:
        """A projector of the views; the next one is this one's successor, unless it has a name of its own."""
        return Projector(
            self.wanted,
            self.log.reader,
            self.store,
            look=0.0,
            report=self.reports,
            **{"member": "bench", "growth": 1, **options},
        )

    def settle(self, projector: Projector | None = None) -> Projector:
        """Steps a projector until it has folded everything."""
        projector = projector or self.projector()
        self.until(projector, lambda: not projector.step(0.0) and projector.caught_up())
        return projector

    def fold(self, projector: Projector | None, *events: Event, **headers: bytes) -> Projector:
        """Appends one decision, and lets a projector fold everything."""
        self.write(*events, **headers)
        return self.settle(projector)

    def until(self, projector: Projector, done: Callable[[], bool]) -> None:
        """Steps until a condition holds."""
        step_until(lambda: projector.step(0.0), done, lambda: f"the projector to get there; {self.reports}")

    def live(self, view: View[Any, Any]) -> Generation:
        """The live generation of a view."""
        found = self.store.registry(view.name).live_of(view.hash)
        assert found is not None
        return found

    def rows(self, view: View[Any, Any]) -> dict[Any, Any]:
        """Every row."""
        return dict(self.views[view].items())

    def change_marks(self, view: View[Any, Any], how: Callable[[Checkpoint], Checkpoint | None]) -> None:
        """Does to every checkpoint what another writer, or an older store, would have done."""
        generation = self.live(view)
        for number, checkpoint in self.store.checkpoints(generation).items():
            changed = how(checkpoint)
            if changed is None:
                del self.store._buckets[generation.view, generation.id, number]
            else:
                flush = BucketFlush(generation, number, checkpoint.token, replace(changed, token="other"), (), ())
                assert self.store.flush([flush])


def checksum(checkpoints: Sequence[Checkpoint]) -> int:
    """The sum of checkpoints."""
    return sum(checkpoint.checksum for checkpoint in checkpoints) % (1 << 128)


@dataclass
class Batches:
    """Micro-batches of one run of a view, as Spark runs them; the test cuts the batches, and the tasks run here."""

    bench: FoldBench
    view: Any
    run: str = "run"

    def __post_init__(self) -> None:
        self.bench.settle(self.bench.projector())
        generation = self.bench.live(self.view)
        self.driver = MicroBatchDriver(
            self.view, generation, self.bench.store.checkpoints(generation), self.run,
            open_store=lambda: self.bench.store, open_log=lambda: CommittedLog(self.bench.log.reader()),
        )  # fmt: skip
        self.number, self.begin = 0, self.driver.position()

    def fold(self, end: Position | None = None) -> None:
        """One batch up to a position, or up to the end."""
        end = end if end is not None else self.bench.log.reader().ends([TOPIC])
        self.driver.fold(self.number, (self.begin, end), self.tasks, self.bench.store)
        self.number, self.begin = self.number + 1, end

    def tasks(self, job: MicroBatchTask) -> Sequence[BatchResult]:
        """The tasks of a batch."""
        return run_tasks(job, self.bench.log, self.bench.store)


def run_tasks(job: MicroBatchTask, log: MemoryLog, store: ViewStore) -> list[BatchResult]:
    """What Spark does: a task per source partition that has anything new, and one per bucket that is touched."""
    parts = [log.of(source.topic)[source.partition][source.start : source.end] for source in job.sources]
    if job.generation.stream_keyed:
        results = list(job.fold_partitions(chain.from_iterable(parts), store))
    else:
        items = sorted(item for part in parts for item in job.read_items(part))
        results = list(job.fold_buckets(items, store))
    return [BatchResult.from_json(result.to_json()) for result in results]
