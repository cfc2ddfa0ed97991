"""Commands that processors decide and commit a second: one processor, two on one machine, and the ceiling."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from multiprocessing.synchronize import Barrier, Event
from typing import Any

from benchmarks.feed import feed
from benchmarks.figure import Figure
from benchmarks.writes import writes_alone
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.local import Servers
from services.baskets.app import app

__all__ = ["run"]

MANY, FEW, BATCH = 200_000, 1_000, 16_000


def run(servers: Servers) -> list[Figure]:
    """The processor at full load, without and with answers to clients, and the same processor with one command a
    transaction.

    The first commands only warm the broker up.
    """
    settings = KafkaSettings(bootstrap_servers=servers.kafka)
    ensure(app, settings)
    tuned_gc()
    fed = 0

    def fed_next(count: int, reply_to: bytes = b"") -> int:
        nonlocal fed
        feed(settings, count, reply_to=reply_to, skip=fed)
        fed += count
        return count

    _decide(settings, fed_next(MANY), batch=BATCH)
    ours = max(_decide(settings, fed_next(MANY), batch=BATCH) for _ in range(3))
    answered = _decide(settings, fed_next(MANY, b"baskets.replies/0"), batch=BATCH)
    ceiling = max(writes_alone(settings, MANY, BATCH) for _ in range(3))
    peer = max(_decide(settings, fed_next(FEW), batch=1) for _ in range(2))
    shared = _share(settings, lambda: fed_next(2 * MANY))
    alone = "one lane; the peer writes the same records in the same transactions and decides nothing"
    return [
        Figure("commands.committed", shared, "commands/s", goal=40_000, note="two workers share the two cores"),
        Figure("commands.one_lane", ours, "commands/s", peer=ceiling, note=alone),
        Figure("commands.answered", answered, "commands/s", note="one lane, every command with a client that waits"),
        Figure(
            "commands.group_commit", ours, "commands/s", peer=peer, goal=250, note="peer: one command a transaction"
        ),
    ]


def _decide(settings: KafkaSettings, count: int, *, batch: int) -> float:
    worker = Worker(app, "baskets", KafkaClientSupplier(settings), stop=threading.Event(), batch=batch)
    while len(worker.served) < app.partitions:
        worker.step()
    gc.collect()
    began, done = time.perf_counter(), 0
    while done < count:
        done += worker.step()
    seconds = time.perf_counter() - began
    worker.close()
    return count / seconds


def _share(settings: KafkaSettings, fill: Any) -> float:
    """Two processes serve half of the partitions each, and begin at once when all commands are there."""
    context = multiprocessing.get_context("spawn")
    ready, begin, counts, stop = context.Barrier(3), context.Barrier(3), context.Array("l", 2), context.Event()
    args = (settings.bootstrap_servers, ready, begin, stop, counts)
    processes = [context.Process(target=_work, args=(*args, number)) for number in range(2)]
    for process in processes:
        process.start()
    try:
        ready.wait()
        count = fill()
        begin.wait()
        began = time.perf_counter()
        while counts[0] + counts[1] < count:
            time.sleep(0.01)
        return float(count / (time.perf_counter() - began))
    finally:
        stop.set()
        for process in processes:
            process.join()


def _work(address: str, ready: Barrier, begin: Barrier, stop: Event, counts: Any, number: int) -> None:
    supplier = KafkaClientSupplier(KafkaSettings(bootstrap_servers=address))
    worker = Worker(app, "baskets", supplier, stop=threading.Event(), batch=BATCH)
    tuned_gc()
    while len(worker.served) != app.partitions // 2:
        worker.step()
    ready.wait()
    begin.wait()
    while not stop.is_set():
        counts[number] += worker.step()
    worker.close()
