"""The grocery chain's commands, workers that decide them, and processes that run beside a measurement."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing.synchronize import Event
from typing import Any

from confluent_kafka import Producer

from leftfold import App
from leftfold.engine.processing.command_wire import command_headers, now_text
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.model import keys as names
from leftfold.ports.message_codec import MessageCodec
from services.baskets.app import app as baskets_app
from services.baskets.domain import baskets
from services.baskets.history import history

__all__ = ["CONTEXT", "as_thread_event", "beside", "decided", "feed", "serving"]

CONTEXT = multiprocessing.get_context("spawn")


def feed(settings: KafkaSettings, count: int, *, reply_to: bytes = b"", skip: int = 0, traceparent: str = "") -> int:
    """Writes that many commands of the year, in time order, as fast as one producer can; returns how many."""
    options = {"partitioner": "murmur2_random", "linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
    producer = Producer({**settings.librdkafka(), **options})
    codec: MessageCodec[Any] = MessageCodec(baskets.commands)
    written = 0
    for id_, command in islice(history(), skip, skip + count):
        headers: Any = command_headers(
            command,
            id=id_,
            source="baskets",
            at=now_text(),
            type_=codec.types[type(command)],
            reply_to=reply_to,
            traceparent=traceparent,
        )
        key = command.basket_id.encode()
        producer.produce(names.commands("baskets"), codec.encode(command), key, headers=headers)
        written += 1
        if written % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    return written


def serving(
    kafka: KafkaSettings, app: App, name: str, stop: threading.Event | None = None, *, share: int = 1, **options: Any
) -> Worker:
    """A worker that serves all partitions of a decider or process, or its share of them."""
    tuned_gc()
    worker = Worker(app, name, KafkaClientSupplier(kafka), stop=stop or threading.Event(), **options)
    while len(worker.served) != app.partitions // share:
        worker.step()
    return worker


def decided(kafka: KafkaSettings, count: int, **options: Any) -> float:
    """Commands of baskets a second that one worker decides, its start left out."""
    worker = serving(kafka, baskets_app, "baskets", **options)
    gc.collect()
    began, done = time.perf_counter(), 0
    while done < count:
        done += worker.step()
    seconds = time.perf_counter() - began
    worker.close()
    return count / seconds


@contextmanager
def beside(*works: tuple[Callable[..., None], *tuple[Any, ...]]) -> Iterator[None]:
    """Runs each `(work, *arguments)` as `work(stop, *arguments)` in a process of its own, until the block ends."""
    stop = CONTEXT.Event()
    processes = [CONTEXT.Process(target=work, args=(stop, *arguments)) for work, *arguments in works]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        stop.set()
        for process in processes:
            process.join()


def as_thread_event(stop: Event) -> threading.Event:
    """An event of this process's own that follows one of all processes."""
    ours = threading.Event()

    def wait() -> None:
        stop.wait()
        ours.set()

    threading.Thread(target=wait, daemon=True).start()
    return ours
