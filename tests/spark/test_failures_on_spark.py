"""What goes wrong in an executor is told in one line, and nothing of the rebuild stays behind."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark import TaskContext

from leftfold import FoldView, SpreadView
from leftfold.engine.rebuild.rebuilder import Rebuild
from leftfold.errors import ContractError, InfrastructureError, LeftfoldError
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.ports.bulk import BulkLog, OffsetRange, OpenBulkLog
from leftfold.redis import RedisBulkSink, RedisSettings
from tests.domains.ledger import Moved, Total, by_owner, by_tag, count, summary
from tests.spark.conftest import Shop

pytestmark = pytest.mark.servers


def untold(event: Moved) -> Iterable[tuple[str, Decimal]]:
    raise ValueError("nobody knows whose this is")


def unowned(event: Moved) -> str:
    raise ValueError("nobody knows whose this is")


def never(row: Total | None, event: Moved) -> Total | None:
    raise ValueError("this fold digests nothing")


lost = SpreadView("lost", events=Moved, row=Total, each=untold, evolve=count)
orphans = FoldView("orphans", events=Moved, row=Total, key=unowned, evolve=never)
picky = FoldView("picky", events=Moved, row=Total, key=lambda e: e.ledger, evolve=never)
pickier = FoldView("pickier", events=Moved, row=Total, evolve=never)


def failure(rebuild: Rebuild, kind: type[LeftfoldError]) -> str:
    with pytest.raises(kind) as raised:
        rebuild.run()
    text = str(raised.value)
    assert "\n" not in text
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("view", [lost, orphans], ids=lambda view: view.name)
def test_an_event_whose_row_cannot_be_told_stops_the_rebuild_and_is_named(shop: Shop, view: Any) -> None:
    text = failure(shop.rebuild(view), ContractError)
    assert text.startswith(f"view {view.name} stops at ledgers.events[")
    assert "nobody knows whose this is" in text
    assert not shop.store.registry(view.name).generations


@pytest.mark.parametrize("view", [picky, pickier], ids=lambda view: view.name)
def test_too_many_parked_keys_stop_the_rebuild(shop: Shop, view: Any) -> None:
    text = failure(shop.rebuild(view, max_parked=2), ContractError)
    assert text.startswith(f"view {view.name}: more than 2 keys are parked, the first at ledgers.events[")
    assert "ValueError: this fold digests nothing" in text
    assert not shop.store.registry(view.name).generations


@pytest.mark.parametrize("view", [summary, by_owner, by_tag], ids=lambda view: view.name)
def test_a_store_that_tasks_cannot_reach_is_named(shop: Shop, view: Any) -> None:
    before = shop.store.registry(view.name)
    rebuild = shop.rebuild(view)
    rebuild._open_sink = partial(RedisBulkSink, RedisSettings(url="redis://127.0.0.1:1/0"))
    assert "redis at 127.0.0.1:1 is not reachable" in failure(rebuild, InfrastructureError)
    after = shop.store.registry(view.name)
    assert after.live == before.live
    assert after.generations.keys() <= before.generations.keys(), "what others left may have been swept"


def broken_in_tasks(open_log: OpenBulkLog) -> BulkLog:
    if TaskContext.get() is None:
        return open_log()
    raise ZeroDivisionError("a factory of the caller fails")


@pytest.mark.parametrize("view", [summary, by_tag], ids=lambda view: view.name)
def test_any_other_error_of_a_task_is_told_too(shop: Shop, view: Any) -> None:
    rebuild = shop.rebuild(view)
    plan = rebuild.plan()
    rebuild._open_log = partial(broken_in_tasks, rebuild._open_log)
    with pytest.raises(InfrastructureError, match="a factory of the caller fails"):
        rebuild.run(plan)


def test_a_hole_in_the_log_raises(shop: Shop) -> None:
    topic, config = "holes.events", shop.kafka.librdkafka()
    admin, producer = AdminClient(config), Producer(config)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(240.0)
    for number in range(10):
        producer.produce(topic, b"%d" % number, b"k", 0)
    producer.flush(240.0)
    log = KafkaBulkLog(shop.kafka)
    assert [m.value() for batch in log.read(OffsetRange(topic, 0, 0, 10)) for m in batch] == [
        b"%d" % n for n in range(10)
    ]
    assert [m.value() for batch in log.read(OffsetRange(topic, 0, 3, 5)) for m in batch] == [b"3", b"4"]
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    deleted.result(240.0)
    with pytest.raises(InfrastructureError, match=r"holes.events\[0\] no longer holds offsets 0 to "):
        list(log.read(OffsetRange(topic, 0, 0, 10)))
    assert len([m for batch in log.read(OffsetRange(topic, 0, 4, 10)) for m in batch]) == 6
    log.close()
