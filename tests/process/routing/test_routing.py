"""What reaches a process: committed events in their order, what is not written is not acknowledged, and the time."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from leftfold.engine.processing.log_time import SourceClock, SourceTime, Watermark
from leftfold.engine.processing.process_wire import MAX_BYTES
from leftfold.engine.reactions.pending import Frontier
from leftfold.errors import InfrastructureError
from leftfold.kafka import input_producer, process_router
from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.input_producer import InputProducer
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.protocols import PartitionId
from tests import planted
from tests.domains.trade import Placed, app
from tests.planted import as_written
from tests.process.routing.routers import EVENTS, plant, routed, routing
from tests.process.trading import Trading
from tests.servers import alter_topic
from tests.settled import committed
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.servers

GROUP = "leftfold.trade.checkout.router"
HEAVY, LIMIT, DEFAULT, BEHIND = 400_000, 300_000, 1_048_588, 100
LIVE, LOADED = datetime.now(UTC), datetime(2017, 1, 1, tzinfo=UTC)


def routers() -> set[int]:
    """The identities of the routers that are not collected; those of other tests are among them."""
    gc.collect()
    return {id(one) for one in gc.get_objects() if type(one) is ProcessRouter}


def test_a_router_that_has_ended_leaves_nothing_behind(
    settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    plant(settings, [("last", "p")])
    before = routers()
    with routing(settings) as failures:
        wait_until(lambda: not failures and "last" in routed(settings), lambda: f"the input: {failures}")
    assert routers() <= before, "one is made after each outage"
    assert not list(tmp_path.iterdir())


def test_a_broker_that_takes_too_long_ends_the_router_in_a_sentence(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made again then; what has no name of ours would end its process with a traceback."""
    monkeypatch.setattr(process_router, "_ANSWER_SECONDS", 1e-9)
    with routing(settings) as failures:
        wait_until(lambda: bool(failures), lambda: "the router to give up")
    assert isinstance(failures[0], InfrastructureError)
    assert "within 1e-09 s: asking how far events are routed to checkout" in str(failures[0])


def acknowledged(settings: KafkaSettings, partition: int) -> int:
    """How far routers have acknowledged a partition."""
    with Groups(settings) as groups:
        return groups.committed(GROUP, [EVENTS]).next_offset(EVENTS, partition)


@pytest.mark.faults
@pytest.mark.parametrize("ours", [True, False])
def test_what_is_not_written_yet_is_not_acknowledged_whatever_comes_behind_it(
    settings: KafkaSettings, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event is a transaction of its own, so a marker lies between them; the twin takes what is read for done."""
    orders = [f"{ours}-{number}" for number in range(100)]
    home = partition_of(orders[0].encode(), app.partitions)
    first, held, behind, later = [n for n in orders if partition_of(n.encode(), app.partitions) == home][:4]
    other = next(n for n in orders if partition_of(n.encode(), app.partitions) != home)
    delivered = InputProducer._delivered

    def hold(self: InputProducer, written: Callable[[], None], error: Any, message: Any) -> None:
        delivered(self, (lambda: None) if message.key() == held.encode() else written, error, message)

    monkeypatch.setattr(InputProducer, "_delivered", hold)
    if not ours:
        monkeypatch.setattr(Frontier, "offsets", lambda self: dict(self._reached))
    for order in (first, held, behind, other):
        plant(settings, [(order, "p")])
    at = {(r.key or b"").decode(): (r.partition, r.offset) for r in committed(settings, EVENTS)}
    with routing(settings) as failures:
        there, last = at[other]
        wait_until(lambda: acknowledged(settings, there) > last, lambda: f"elsewhere: {failures}")
        wait_until(lambda: behind in routed(settings), lambda: f"what comes behind: {failures}")
        plant(settings, [(later, "p")])
        wait_until(lambda: later in routed(settings), lambda: f"what another fetch brings: {failures}")
        if not ours:
            wait_until(lambda: acknowledged(settings, at[held][0]) > at[behind][1], "the loss")
    passed = acknowledged(settings, at[held][0]) > at[held][1]
    assert passed is not ours


def limit(settings: KafkaSettings, most: int) -> None:
    """Says how heavy a batch of inputs may be."""
    alter_topic(settings, "checkout.commands", {"max.message.bytes": str(most)})


def write_heavy(settings: KafkaSettings, order: str) -> None:
    """A heavy event of an order, and light ones behind it."""
    plant(settings, [(order, "x" * HEAVY), *[(order, "p")] * BEHIND])


def weights(settings: KafkaSettings, order: str) -> list[bool]:
    """Which inputs of an order are the heavy one, as they stand in the topic."""
    records = committed(settings, "checkout.commands")
    return [len(r.value or b"") > HEAVY for r in records if r.key == order.encode()]


def skipping(config: dict[str, Any], **options: Any) -> Producer:
    """A producer that continues behind a record that is refused."""
    return Producer({**config, "enable.gapless.guarantee": False}, **options)


@pytest.mark.parametrize("gives_up", [True, False])
def test_what_waits_behind_a_refused_input_is_not_written_before_it(
    settings: KafkaSettings, gives_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin writes what waits; an instance then takes the refused input for something that was there."""
    monkeypatch.setattr(ProcessRouter, "_max_bytes", lambda self: MAX_BYTES)  # or the heavy one is a dead letter
    if not gives_up:
        monkeypatch.setattr(input_producer, "Producer", skipping)
        monkeypatch.setattr(InputProducer, "close", lambda self: self._producer.flush(WAIT_SECONDS))
    order = f"refused-{gives_up}"
    limit(settings, LIMIT)
    write_heavy(settings, order)
    with routing(settings) as failures:
        wait_until(lambda: bool(failures), "the router to end")
    assert isinstance(failures[0], InfrastructureError)
    assert "Message size too large" in str(failures[0])
    limit(settings, DEFAULT)
    with routing(settings) as failures:
        wait_until(lambda: not failures and any(weights(settings, order)), lambda: f"the first: {failures}")
        wait_until(lambda: not failures and len(weights(settings, order)) > BEHIND, lambda: f"the rest: {failures}")
    assert weights(settings, order)[0] is gives_up


def write(settings: KafkaSettings, at: datetime, partitions: list[int]) -> None:
    """An event of some time in each of these partitions."""
    event, time = Placed(order="o", product="p", at=at), at.isoformat().encode()
    records = [as_written(event, app.partitions, ce_time=time)._replace(partition=p) for p in partitions]
    planted.write(settings, EVENTS, records, commit=None)


def reported(settings: KafkaSettings) -> list[Watermark]:
    """What routers have said of time."""
    checkpoints = [Watermark.decode(record.value or b"") for record in committed(settings, names.time("checkout"))]
    return checkpoints or [Watermark()]


def is_acknowledged(settings: KafkaSettings, partitions: list[int]) -> bool:
    """Whether routers have acknowledged all that is in these partitions."""
    with Groups(settings) as groups:
        ends = groups.ends([EVENTS])
    return all(acknowledged(settings, p) >= ends.next_offset(EVENTS, p) for p in partitions)


@pytest.mark.parametrize("forgets", [True, False])
def test_a_partition_that_comes_back_is_reported_as_one_that_no_router_knows(
    settings: KafkaSettings, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last event was loaded; the twin goes by the one before, and says that the present has come."""
    holding, tick = threading.Event(), ProcessRouter._report_time
    assigned: dict[ProcessRouter, frozenset[PartitionId]] = {}

    def held(self: ProcessRouter, now: float) -> None:
        assigned[self] = self.served
        if not holding.is_set():
            tick(self, now)

    def hold(self: SourceClock, place: PartitionId, now: datetime) -> None:
        self._since[place] = now
        self._ahead.setdefault(place, {})

    monkeypatch.setattr(ProcessRouter, "_report_time", held)
    if not forgets:
        monkeypatch.setattr(SourceClock, "drop", lambda self, places: None)
        monkeypatch.setattr(SourceClock, "hold", hold)
    with Trading(settings, parts=("router",)) as trading:
        wait_until(lambda: bool(assigned) and len(reported(settings)[-1].sources) == 12, "the router to begin")
        (ours,) = assigned
        holding.set()
        count = len(committed(settings, "checkout.commands"))
        write(settings, LIVE, [0, 1, 2, 3])
        wait_until(lambda: len(committed(settings, "checkout.commands")) >= count + 4, "all to be routed")
        with Trading(settings, parts=("router",)):
            wait_until(lambda: len(assigned) == 2 and all(0 < len(tps) < 12 for tps in assigned.values()), "another")
            holding.clear()
            lost = [p for p in range(4) if (EVENTS, p) not in assigned[ours]]
            sources = {f"{EVENTS}/{partition}" for partition in lost}
            assert lost
            write(settings, LOADED, lost)
            wait_until(lambda: is_acknowledged(settings, lost), "the other one to route what is loaded")
            wait_until(
                lambda: any(len(checkpoint.sources) < 12 for checkpoint in reported(settings)[-2:]),
                "both to tell the time",
            )
        wait_until(
            lambda: len(reported(settings)[-1].sources) == 12 and not trading.failures,
            lambda: f"the router to get them back: {trading.failures}",
        )
        known = reported(settings)[-1].sources
    assert all(known[source] == SourceTime() for source in sources) is forgets
