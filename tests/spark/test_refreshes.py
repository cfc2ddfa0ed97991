"""Query views on real Kafka, Spark and Redis: a whole new generation each time, and readers of one at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from leftfold import Event
from leftfold.engine.rebuild.rebuilder import RebuildOptions
from leftfold.engine.rebuild.refresh import Refresh
from leftfold.engine.rebuild.result import Agreement
from leftfold.errors import ConfigurationError, ContractError, Fenced
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.model.computed_views import QueryView, TableView
from leftfold.model.position import Position
from leftfold.ports.flush import Phase
from leftfold.redis import RedisBulkSink
from leftfold.spark.queries.query_refresh import query_runner
from leftfold.spark.queries.testing import rows
from tests.domains.ledger import Closed, Move, Moved, Opened, app
from tests.spark.conftest import WAIT_SECONDS, Shop
from tests.spark.oracle import logged
from tests.spark.queries import OwnerSums, balances, owner_frame, owner_sums, regions, still_open
from tests.spark.query_streams import made_elsewhere
from tests.worker.receipts import behind

pytestmark = pytest.mark.servers


def refresh(shop: Shop, view: TableView[Any, Any], **options: Any) -> Refresh:
    return Refresh(
        view,
        shop.store,
        open_log=partial(KafkaBulkLog, shop.kafka),
        open_reader=partial(KafkaLogReader, shop.kafka),
        open_sink=partial(RedisBulkSink, shop.redis),
        run=query_runner(shop.spark),
        options=RebuildOptions(**{"keep": 0, **options}),
    )


def move(shop: Shop, owner: str, amount: str, ledger: str = "l-1") -> Any:
    with KafkaClient(app.name, shop.kafka) as client:
        command = Move(ledger=ledger, owner=owner, amount=Decimal(amount))
        position = client.send(command, timeout=WAIT_SECONDS).position
    shop.wait_stable(position)
    return position


@pytest.fixture(autouse=True)
def _nothing_left(shop: Shop) -> Iterator[None]:
    """Each test begins without generations of these views."""
    yield
    for view in (owner_sums, owner_frame, balances, still_open):
        for generation in shop.store.registry(view.name).generations.values():
            shop.store.unlink(generation)
        shop.store._client.execute_command("DEL", f"view:{view.name}")


@pytest.mark.parametrize("view", [owner_sums, owner_frame, still_open], ids=repr)
def test_a_refresh_gives_what_sql_gives_of_the_same_events_in_memory(shop: Shop, view: Any) -> None:
    result = refresh(shop, view).run()
    assert (result.agreement, result.swapped) == (Agreement.ALONE, True)
    events = [event for event in logged(shop) if isinstance(event, Moved | Opened | Closed)]
    expected = rows(view, *events, spark=shop.spark)
    found = shop.views[view]
    assert dict(found.items()) == expected
    assert len(expected) >= 7
    described = found.describe()
    assert described.rows == result.rows == len(expected)
    codec = view.rows
    digests = (codec.digest(view.keys.encode(key), codec.encode(row)) for key, row in expected.items())
    assert int(described.checksum, 16) == sum(digests) % (1 << 128)


def test_the_same_rows_by_sql_and_by_fold(shop: Shop) -> None:
    from tests.domains.ledger import by_owner

    refresh(shop, owner_sums).run()
    shop.views[by_owner].wait_reached(shop.views[owner_sums].describe().position, timeout=WAIT_SECONDS)
    folded = {key: row.total for key, row in shop.views[by_owner].items()}
    assert {key: row.total for key, row in shop.views[owner_sums].items()} == folded


def test_a_second_refresh_at_the_same_cut_agrees_and_is_not_needed(shop: Shop) -> None:
    first = refresh(shop, owner_sums).run()
    again = refresh(shop, owner_sums)
    assert again.stands_at(again.plan())
    second = again.run()
    assert (second.agreement, second.predecessor, second.checksum) == (
        Agreement.EQUAL,
        first.generation,
        first.checksum,
    )
    assert list(shop.store.registry(owner_sums.name).generations) == [second.generation]


def test_readers_can_wait_for_what_they_wrote(shop: Shop) -> None:
    refresh(shop, owner_sums).run()
    position = move(shop, "waiter", "12.34")
    late = threading.Timer(0.5, lambda: refresh(shop, owner_sums).run())
    late.start()
    row = shop.views[owner_sums].get("waiter", after=position, timeout=WAIT_SECONDS)
    late.join()
    assert row is not None
    assert (row.moves, row.total) == (1, Decimal("12.34"))
    assert shop.views[owner_sums].find(moves=1)["waiter"] == row


def test_groups_that_disappeared_are_gone_after_the_swap(shop: Shop) -> None:
    move(shop, "fleeting", "5.00", ledger="l-fleeting")
    refresh(shop, balances).run()
    assert shop.views[balances].get("fleeting") is not None
    move(shop, "fleeting", "-5.00", ledger="l-fleeting")
    result = refresh(shop, balances).run()
    assert (result.agreement, result.why) == (Agreement.UNKNOWN, f"{result.predecessor} holds fewer events")
    assert shop.views[balances].get("fleeting") is None


def test_readers_see_one_generation_at_a_time(shop: Shop) -> None:
    """Every move is of one cent to two owners; a reader of both in one call never sees them differ."""
    pair = [Move(ledger=f"l-{name}", owner=name, amount=Decimal("0.01")) for name in ("left", "right")]
    seen: set[tuple[Any, Any]] = set()
    stop = threading.Event()
    with KafkaClient(app.name, shop.kafka) as client:

        def move_both() -> None:
            shop.wait_stable(behind(client.send_many(pair, timeout=WAIT_SECONDS)))

        move_both()
        refresh(shop, owner_sums, keep=600).run()

        def read() -> None:
            while not stop.is_set():
                found = shop.views[owner_sums].many(["left", "right"])
                seen.add((found["left"].total, found["right"].total))

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(3):
            move_both()
            refresh(shop, owner_sums, keep=600).run()
        stop.set()
        reader.join()
    assert all(left == right for left, right in seen), seen
    assert len(seen) >= 3


def doubled(row: OwnerSums) -> str:
    return row.owner[:1]


def test_two_rows_of_one_key_stop_the_refresh_and_name_it(shop: Shop) -> None:
    refresh(shop, owner_sums).run()
    before = dict(shop.views[owner_sums].items())
    broken = QueryView("owner_sums", events=Moved, row=OwnerSums, key=doubled, query=owner_sums.query)
    with pytest.raises(ContractError, match="view owner_sums: the query gives several rows for the key [a-z];"):
        refresh(shop, broken).run()
    assert all(g.phase is not Phase.BULK for g in shop.store.registry("owner_sums").generations.values())
    assert dict(shop.views[owner_sums].items()) == before


def test_hostile_sql_stops_before_spark_runs_anything(shop: Shop) -> None:
    query = "SELECT owner, reflect('a', 'b') AS total FROM Moved"
    hostile = QueryView("hostile", events=Moved, row=OwnerSums, key=lambda r: r.owner, query=query)
    jobs = shop.spark.sparkContext.statusTracker().getJobIdsForGroup(None)
    with pytest.raises(ConfigurationError, match="the function reflect is not allowed"):
        refresh(shop, hostile).run()
    assert shop.spark.sparkContext.statusTracker().getJobIdsForGroup(None) == jobs
    assert not shop.store.registry("hostile").generations


def test_other_rows_at_the_same_cut_are_not_shown(shop: Shop) -> None:
    """Twin of agreement: a predecessor that holds something else is noticed, unless reference files explain it."""
    first = refresh(shop, owner_sums).run()
    generation = shop.store.registry(owner_sums.name).generations[first.generation]
    key, checkpoint = f"v:{{owner_sums:{generation.id}:0}}@", shop.store.checkpoints(generation)[0]
    shop.store._client.execute_command("HSET", key, "checksum", f"{checkpoint.checksum + 1:032x}")
    result = refresh(shop, owner_sums).run()
    assert (result.agreement, result.swapped, result.exit_code) == (Agreement.DIFFERENT, False, 3)
    assert shop.views[owner_sums].describe().generation == first.generation
    anyway = refresh(shop, owner_sums, swap_anyway=True).run()
    assert (anyway.agreement, anyway.swapped) == (Agreement.DIFFERENT, True)


def test_a_reference_file_that_changes_changes_the_rows(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "owners.csv"
    file.write_text("owner,region\no/1,north\n")
    view = regions(file)
    refresh(shop, view).run()
    assert set(dict(shop.views[view].items())) == {"north", "nowhere"}
    file.write_text("owner,region\no/1,south\n")
    result = refresh(shop, view).run()
    assert (result.agreement, result.swapped) == (Agreement.UNKNOWN, True)
    assert "reference files" in result.why
    assert set(dict(shop.views[view].items())) == {"south", "nowhere"}


def test_of_two_refreshes_the_slower_with_fewer_events_gives_way(shop: Shop) -> None:
    slow = refresh(shop, owner_sums)
    plan = slow.plan()
    move(shop, "late", "1.00")
    fast = refresh(shop, owner_sums).run()
    with pytest.raises(Fenced, match=f"generation {fast.generation} .* is ahead of .*; another was faster"):
        slow.run(plan)
    assert shop.views[owner_sums].describe().generation == fast.generation
    assert len(shop.store.registry(owner_sums.name).generations) == 1


def planted(shop: Shop, topic: str, value: bytes, *, commit: bool | None) -> Producer:
    """A transaction with one event that cannot be read; commit=None leaves it open."""
    producer = Producer({**shop.kafka.librdkafka(), "transactional.id": f"poison-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    name = topic.removesuffix(".events")
    headers: Any = [("ce_type", f"{name}.Moved.v1".encode()), ("ce_time", b"2026-01-01T00:00:00Z")]
    headers += [("ce_sequence", b"1"), ("ce_decision", b"1/1"), ("ce_id", b"x")]
    producer.produce(topic, value, b"l", 0, headers=headers)
    producer.flush(240.0)
    if commit:
        producer.commit_transaction(30)
        shop.wait_stable(Position({topic: {0: 1}}))
    return producer


BROKEN = b'{"ledger": "l", "owner": "o", "amount": "no number"}'


def test_what_is_not_committed_is_not_read(shop: Shop) -> None:
    view = QueryView("poisoned", events=Moved, row=OwnerSums, key=lambda r: r.owner, query=owner_sums.query)
    producer = planted(shop, "ledgers.events", BROKEN, commit=None)
    assert refresh(shop, view).run().swapped, "an open transaction is not read"
    producer.abort_transaction(30)
    assert refresh(shop, view).run().swapped, "nor is an aborted one"


class Spilt(Event, category="poisons", key="ledger", name="Moved"):
    ledger: str
    owner: str
    amount: Decimal


def test_an_event_that_cannot_be_read_stops_the_refresh_and_is_named(shop: Shop) -> None:
    topic = "poisons.events"
    admin = AdminClient(shop.kafka.librdkafka())
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(240.0)
    planted(shop, topic, BROKEN, commit=True)
    view = QueryView("spilt", events=Spilt, row=OwnerSums, key=lambda r: r.owner, query=owner_sums.query)
    with pytest.raises(ContractError, match=r"table Moved stops at poisons.events\[0\]@0: no poisons.Moved.v1: amount"):
        refresh(shop, view).run()
    assert not shop.store.registry("spilt").generations


def test_rows_of_another_topic_are_replaced_only_by_a_rebuild_that_was_typed(shop: Shop) -> None:
    """By numbers they are at the same cut, and without ids nothing shows that they are not of this topic."""
    first = refresh(shop, owner_frame).run()
    assert refresh(shop, owner_frame).foreign() == ""
    made_elsewhere(shop, owner_frame, id_="")
    trusting = refresh(shop, owner_frame)
    assert (trusting.foreign(), trusting.stands_at(trusting.plan())) == ("", True), "the twin"
    made = made_elsewhere(shop, owner_frame)
    found = refresh(shop, owner_frame)
    assert f"generation {made.id} of view owner_frame was folded from another ledgers.events (its id was" in (
        found.foreign()
    )
    assert not found.stands_at(found.plan())
    result = found.run()
    assert (result.swapped, result.agreement) == (True, Agreement.UNKNOWN)
    assert result.why == f"{first.generation} was computed from other topics"
    again = refresh(shop, owner_frame)
    assert (again.foreign(), again.stands_at(again.plan())) == ("", True)
