"""A process with many inputs is folded anew by a raised version, however long that takes."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from leftfold.engine.processing.process_wire import Router
from leftfold.errors import InfrastructureError
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker import state_restore as restore
from leftfold.kafka.worker import worker
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.poison_pills import CLEAN
from leftfold.kafka.worker.state_restore import Restoration
from leftfold.kafka.worker.worker import Worker
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.protocols import LogReader, RawRecord
from tests.domains.trade import Placed, app, checkout
from tests.process.child import Child
from tests.process.children import StartChild
from tests.process.effects import folded, states
from tests.process.test_begun_again import raised
from tests.process.trading import committed
from tests.waiting import wait_until
from tests.worker.points import Point

pytestmark = [pytest.mark.servers, pytest.mark.faults]

INPUTS, READ, WRITE = 2000, 10, 100
Reports = list[tuple[str, Mapping[str, Any]]]


def slow_reads(patch: pytest.MonkeyPatch, *, full: float, empty: float) -> None:
    """Has a read that brings something take so many seconds, by the clock of restores, and one that does not."""
    seconds, read = [0.0], Restoration._read

    def slowly(restoration: Restoration, log: LogReader) -> list[RawRecord]:
        records = read(restoration, log)
        seconds[0] += full if records else empty
        return records

    patch.setattr(Restoration, "_read", slowly)
    patch.setattr(restore, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + seconds[0]))


@contextmanager
def reacting(settings: KafkaSettings) -> Iterator[tuple[Worker, Reports]]:
    """A worker of the raised version, and what it reports."""
    stop, reports = threading.Event(), Reports()
    shop = KafkaClientSupplier(settings)
    one = Worker(raised(), "checkout", shop, stop=stop, report=lambda what, details: reports.append((what, details)))

    def run() -> None:
        try:
            one.run()
        except InfrastructureError as error:
            reports.append(("failed", {"why": str(error)}))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield one, reports
    finally:
        stop.set()
        thread.join(240.0)
        assert not thread.is_alive(), "the worker does not end"


def fill(settings: KafkaSettings) -> None:
    """Inputs as a router writes them, all of which another version has taken."""
    router = Router(app.name, checkout, lambda key: partition_of(key, app.partitions))
    producer = Producer(settings.librdkafka())
    for number in range(INPUTS):
        order = Placed(order=f"o{number}", product="p", at=datetime(2026, 1, 1, tzinfo=UTC))
        headers = [
            ("ce_type", b"orders.Placed.v1"),
            ("ce_id", b"id-%d" % number),
            ("ce_time", b"2026-01-01T00:00:00Z"),
        ]
        routed = router.route(RawRecord("orders.events", 0, number, b"o", order.model_dump_json().encode(), headers))
        assert routed is not None
        said: Any = routed.headers
        producer.produce("checkout.commands", routed.value, routed.key, routed.partition, headers=said)
    assert producer.flush(240.0) == 0
    ends = Counter(record.partition for record in committed(settings, "checkout.commands"))
    group = {"group.id": names.group(app.name, "checkout"), "enable.auto.commit": False}
    consumer = Consumer({**settings.librdkafka(), **group})
    try:
        places = [TopicPartition("checkout.commands", p, end, CLEAN) for p, end in ends.items()]
        consumer.commit(offsets=places, asynchronous=False)
    finally:
        consumer.close()
    ensure(raised(), settings)


def test_folding_takes_the_time_it_takes_and_says_how_far_it_is(
    settings: KafkaSettings, start: StartChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(settings)
    doomed = start(
        Child(
            settings.bootstrap_servers,
            "checkout",
            "tests.process.newer:app",
            (Point("before commit_transaction", nth=2),),
        )
    )
    assert doomed.wait_end() == -signal.SIGKILL, "one partition is written by now, and another in part"
    monkeypatch.setattr(restore, "READ", READ)
    monkeypatch.setattr(worker, "REFOLDED", WRITE)
    with monkeypatch.context() as patch:
        slow_reads(patch, full=1.0, empty=10.0)
        patch.setattr(Restoration, "_short", lambda self, log, topic, ends: True)
        with reacting(settings) as (_, reports):
            wait_until(lambda: any(what == "failed" for what, _ in reports), lambda: f"an end: {reports}")
        assert "no progress within 60 s" in reports[-1][1]["why"], "what does not move is not waited for"
    slow_reads(monkeypatch, full=1.0, empty=0.0)
    with reacting(settings) as (one, reports):
        wait_until(
            lambda: len(one.served) == 4 or any(what == "failed" for what, _ in reports), lambda: f"an end: {reports}"
        )
        told = [details for what, details in reports if what == "folding"]
        assert {what for what, _ in reports} == {"folding", "serving"}, "it stayed in its group all the while"
    assert len(told) > INPUTS / READ / 10
    (whole,) = {details["of"] for details in told}
    assert INPUTS / 2 < whole < INPUTS, "what was written before the kill is not folded again"
    done = [details["done"] for details in told]
    assert done == sorted(done)
    written = states(settings, raised())
    assert len(written) == INPUTS
    assert written == folded(settings, raised())
