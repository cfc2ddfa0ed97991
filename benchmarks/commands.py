"""How many commands one lane decides and commits a second, against one transaction per command in the same run."""

from __future__ import annotations

import gc
import threading
import time

from benchmarks.feed import feed
from benchmarks.figure import Figure
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.topics import ensure
from leftfold.kafka.worker import Worker
from leftfold.kafka.workshop import Workshop
from leftfold.local import Servers
from leftfold.process import tuned_gc
from services.baskets.app import app

__all__ = ["run"]

MANY, FEW = 200_000, 1_000


def run(servers: Servers) -> list[Figure]:
    """The lane at full load, without and with answers to clients, and the same lane with one command a transaction."""
    settings = KafkaSettings(bootstrap_servers=servers.kafka)
    ensure(app, settings)
    tuned_gc()
    feed(settings, MANY)
    ours = _decide(settings, MANY, batch=2000)
    feed(settings, MANY, reply_to=b"baskets.replies/0", skip=MANY)
    answered = _decide(settings, MANY, batch=2000)
    feed(settings, FEW, skip=2 * MANY)
    peer = _decide(settings, FEW, batch=1)
    return [
        Figure("commands.committed", ours, "commands/s", goal=40_000),
        Figure("commands.answered", answered, "commands/s", note="every command with a client waiting for its answer"),
        Figure(
            "commands.group_commit", ours, "commands/s", peer=peer, goal=250, note="peer: one command a transaction"
        ),
    ]


def _decide(settings: KafkaSettings, count: int, *, batch: int) -> float:
    worker = Worker(app, "baskets", Workshop(settings), stop=threading.Event(), batch=batch)
    while len(worker.served) < app.partitions:
        worker.step()
    gc.collect()
    began, done = time.perf_counter(), 0
    while done < count:
        done += worker.step()
    seconds = time.perf_counter() - began
    worker.close()
    return count / seconds
