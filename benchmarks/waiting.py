"""How long after a flush a reader that waits for it has its row: woken by notice, and by looking every few ms."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.figure import Figure
from leftfold import Event, FoldView, Position
from leftfold.client import Reader, Views
from leftfold.engine.views.generations import change, open_generation
from leftfold.local import Servers
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Phase, RowChange
from leftfold.redis import RedisSettings, RedisViewStore

__all__ = ["run"]

TOPIC, FLUSHES = "visits.events", 500
FIRST_PAUSE, LAST_PAUSE = 0.0005, 0.004


class Seen(Event, category="visits", key="visit"):
    """Somebody was seen."""

    visit: str


@dataclass(frozen=True)
class Count:
    """How often."""

    times: int


def _never(row: Count | None, event: Seen) -> Count | None:
    return row


view = FoldView("visits", events=Seen, row=Count, evolve=_never)


def run(servers: Servers) -> list[Figure]:
    """Flushes in one thread while another waits for each; ours, then the pauses that readers made before."""
    store = RedisViewStore(RedisSettings(url=servers.redis))
    try:
        generation = open_generation(store, view, {TOPIC: 1}, Phase.SEALED)
        change(store, view.name, lambda registry: registry.pointed(generation))
        times = {
            name: sorted(_times(store, generation, Views(store, pause)[view]))
            for name, pause in (("notice", None), ("pauses", Pauses()))
        }
    finally:
        store.close()
    medians = {name: statistics.median(some) * 1000 for name, some in times.items()}
    note = "peer: looks after 0.5 ms, then ever more rarely, up to every 4 ms"
    return [
        Figure(
            "reads.after_a_flush_p50", medians["notice"], "ms", peer=medians["pauses"], goal=1, smaller=True, note=note
        ),
        Figure("reads.after_a_flush_p99", times["notice"][int(FLUSHES * 0.99)] * 1000, "ms"),
    ]


class Pauses:
    """Waits as readers once did: each time twice as long, up to 4 ms, from the start for each position."""

    def __init__(self) -> None:
        self._pause, self._last = FIRST_PAUSE, 0.0

    def __call__(self, seconds: float) -> None:
        """One pause; a reader that was away for longer than a pause has begun to wait for something else."""
        if time.monotonic() - self._last > LAST_PAUSE / 2:
            self._pause = FIRST_PAUSE
        time.sleep(min(seconds, self._pause))
        self._pause = min(self._pause * 2, LAST_PAUSE)
        self._last = time.monotonic()


def _times(store: RedisViewStore, generation: Generation, reader: Reader[Count]) -> Iterator[float]:
    token = store.checkpoints(generation)[0].token
    start = store.checkpoints(generation)[0].position.next_offset(TOPIC, 0)
    with _waiting(reader) as (wanted, found):
        for number in range(start + 1, start + FLUSHES + 1):
            position = Position.at(TOPIC, 0, number)
            wanted.put(position)
            time.sleep(0.006)  # the reader is waiting by now, wherever it is between two looks
            token = _flush(store, generation, token, position, number)
            flushed = time.perf_counter()
            yield max(0.0, found.get(timeout=10.0) - flushed)


@contextmanager
def _waiting(reader: Reader[Count]) -> Iterator[tuple[queue.Queue[Position | None], queue.Queue[float]]]:
    """A thread that reads after each position it is given, and says when it had the row."""
    wanted: queue.Queue[Position | None] = queue.Queue()
    found: queue.Queue[float] = queue.Queue()

    def read() -> None:
        while (position := wanted.get()) is not None:
            reader.get("v", after=position, timeout=10.0)
            found.put(time.perf_counter())

    thread = threading.Thread(target=read, name="reader")
    thread.start()
    try:
        yield wanted, found
    finally:
        wanted.put(None)
        thread.join()


def _flush(store: RedisViewStore, generation: Generation, expected: str, position: Position, number: int) -> str:
    fields = view.rows.encode(Count(number))
    some = (RowChange("v", fields, number, None if number == 1 else (), ()),)
    checkpoint = Checkpoint(position, token=f"f-{number}", rows=1)
    if not store.flush([BucketFlush(generation, 0, expected, checkpoint, view.rows.columns, (), some)]):
        raise RuntimeError("somebody else writes this view")
    return checkpoint.token
