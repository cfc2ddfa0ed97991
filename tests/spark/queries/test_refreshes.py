"""Query views on real Kafka, Spark and Redis: a whole new generation each time."""

from __future__ import annotations

import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.accumulators import _accumulatorRegistry

from leftfold import Event
from leftfold.engine.rebuild.result import Agreement
from leftfold.errors import ConfigurationError, ContractError, Fenced
from leftfold.model.computed_views import QueryView
from leftfold.model.position import Position
from leftfold.spark.queries.query_refresh import query_runner
from leftfold.spark.queries.testing import rows
from tests.domains.ledger import Closed, Moved, Opened, by_owner
from tests.planted import as_written, write
from tests.spark.conftest import Shop
from tests.spark.oracle import logged
from tests.spark.queries.streams import made_elsewhere
from tests.spark.queries.views import (
    OwnerSums,
    balances,
    but_one,
    initial,
    owner_frame,
    owner_sums,
    regions,
    still_open,
    sums_of,
)
from tests.waiting import WAIT_SECONDS

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("forgotten")]


@pytest.mark.parametrize("view", [owner_sums, owner_frame, still_open], ids=repr)
def test_a_refresh_gives_what_sql_gives_of_the_same_events_in_memory(shop: Shop, view: Any) -> None:
    result = shop.refresh(view).run()
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


def test_a_second_refresh_of_the_same_events_agrees_and_other_rows_are_not_shown(shop: Shop) -> None:
    """The twin of agreement is a predecessor that holds something else."""
    first = shop.refresh(owner_sums).run()
    again = shop.refresh(owner_sums)
    assert again.stands_at(again.plan())
    second = again.run()
    assert (second.agreement, second.predecessor, second.checksum) == (
        Agreement.EQUAL,
        first.generation,
        first.checksum,
    )
    (generation,) = shop.store.registry(owner_sums.name).generations.values()
    assert generation.id == second.generation
    shop.views[by_owner].wait_reached(shop.views[owner_sums].describe().position, timeout=WAIT_SECONDS)
    folded = {key: row.total for key, row in shop.views[by_owner].items()}
    assert {key: row.total for key, row in shop.views[owner_sums].items()} == folded
    key, checkpoint = f"v:{{owner_sums:{generation.id}:0}}@", shop.store.checkpoints(generation)[0]
    shop.store._client.execute_command("HSET", key, "checksum", f"{checkpoint.checksum + 1:032x}")
    result = shop.refresh(owner_sums).run()
    assert (result.agreement, result.swapped, result.exit_code) == (Agreement.DIFFERENT, False, 3)
    assert shop.views[owner_sums].describe().generation == second.generation
    anyway = shop.refresh(owner_sums, swap_anyway=True).run()
    assert (anyway.agreement, anyway.swapped) == (Agreement.DIFFERENT, True)


def test_readers_wait_for_what_they_wrote_and_groups_that_disappeared_are_removed(shop: Shop) -> None:
    shop.refresh(balances).run()
    position = shop.move("fleeting", "5.00")
    late = threading.Timer(0.5, lambda: shop.refresh(balances).run())
    late.start()
    row = shop.views[balances].get("fleeting", after=position, timeout=WAIT_SECONDS)
    late.join()
    assert row is not None
    assert row.above == 1
    shop.move("fleeting", "-5.00")
    result = shop.refresh(balances).run()
    assert (result.agreement, result.why) == (Agreement.UNKNOWN, f"{result.predecessor} holds fewer events")
    assert shop.views[balances].get("fleeting") is None


class Spilt(Event, category="poisons", key="ledger", name="Moved"):
    ledger: str
    owner: str
    amount: Decimal


BROKEN = b'{"ledger": "l", "owner": "o", "amount": "no number"}'


def test_a_refresh_that_cannot_end_names_the_cause_and_leaves_what_was_there(shop: Shop) -> None:
    shop.refresh(owner_sums).run()
    before = shop.store.registry(owner_sums.name)
    doubled = sums_of(owner_sums.name, key=initial)
    with pytest.raises(ContractError, match="view owner_sums: the query gives several rows for the key [a-z];"):
        shop.refresh(doubled).run()
    assert shop.store.registry(owner_sums.name) == before
    hostile = sums_of("hostile", query="SELECT owner, reflect('a', 'b') AS total FROM Moved")
    jobs = shop.spark.sparkContext.statusTracker().getJobIdsForGroup(None)
    with pytest.raises(ConfigurationError, match="the function reflect is not allowed"):
        shop.refresh(hostile).run()
    assert shop.spark.sparkContext.statusTracker().getJobIdsForGroup(None) == jobs, "Spark has run nothing"
    topic = "poisons.events"
    admin = AdminClient(shop.kafka.librdkafka())
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(240.0)
    good = as_written(Spilt(ledger="l", owner="o", amount=Decimal(1)), 1)
    write(shop.kafka, topic, [good._replace(value=BROKEN)])
    shop.wait_stable(Position({topic: {0: 1}}))
    spilt = sums_of("spilt", events=Spilt)
    with pytest.raises(ContractError, match=r"table Moved stops at poisons.events\[0\]@0: no poisons.Moved.v1: amount"):
        shop.refresh(spilt).run()
    assert not shop.store.registry("hostile").generations
    assert not shop.store.registry("spilt").generations


def test_refreshes_leave_no_accumulator_behind(shop: Shop) -> None:
    before = set(_accumulatorRegistry)
    for _ in range(2):
        shop.refresh(owner_sums).run()
    assert set(_accumulatorRegistry) <= before


def test_a_reference_file_that_changes_changes_the_rows(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "owners.csv"
    file.write_text("owner,region\no/1,north\n")
    view = regions(file)
    shop.refresh(view).run()
    assert set(dict(shop.views[view].items())) == {"north", "nowhere"}
    file.write_text("owner,region\no/1,south\n")
    result = shop.refresh(view).run()
    assert (result.agreement, result.swapped) == (Agreement.UNKNOWN, True)
    assert "reference files" in result.why
    assert set(dict(shop.views[view].items())) == {"south", "nowhere"}


def test_of_two_refreshes_the_slower_with_fewer_events_gives_way(shop: Shop) -> None:
    slow = shop.refresh(owner_sums)
    plan = slow.plan()
    shop.move("late", "1.00")
    fast = shop.refresh(owner_sums).run()
    with pytest.raises(Fenced, match=f"generation {fast.generation} .* is ahead of .*; another was faster"):
        slow.run(plan)
    assert shop.views[owner_sums].describe().generation == fast.generation
    assert len(shop.store.registry(owner_sums.name).generations) == 1


def test_rows_of_another_topic_are_replaced_only_by_a_rebuild_that_was_typed(shop: Shop) -> None:
    """By numbers they are at the same cut, and without ids nothing shows that they are not of this topic."""
    first = shop.refresh(owner_frame).run()
    assert shop.refresh(owner_frame).foreign() == ""
    made_elsewhere(shop, owner_frame, id_="")
    trusting = shop.refresh(owner_frame)
    assert (trusting.foreign(), trusting.stands_at(trusting.plan())) == ("", True), "the twin"
    made = made_elsewhere(shop, owner_frame)
    found = shop.refresh(owner_frame)
    assert f"generation {made.id} of view owner_frame was folded from another ledgers.events (its id was" in (
        found.foreign()
    )
    assert not found.stands_at(found.plan())
    result = found.run()
    assert (result.swapped, result.agreement) == (True, Agreement.UNKNOWN)
    assert result.why == f"{first.generation} was computed from other topics"
    again = shop.refresh(owner_frame)
    assert (again.foreign(), again.stands_at(again.plan())) == ("", True)


def test_rows_without_a_key_are_left_out_and_named(shop: Shop) -> None:
    view: QueryView[OwnerSums, str] = sums_of("sums", key=but_one)
    reported: list[str] = []
    refresh = shop.refresh(view)
    refresh._run = query_runner(shop.spark, reported.append)
    assert refresh.run().swapped
    owners = {event.owner for event in logged(shop) if isinstance(event, Moved)}
    assert set(dict(shop.views[view].items())) == owners - {"o/3"}
    (line,) = reported
    assert line.startswith("view sums: 1 row passed over, since a row key may not be empty: OwnerSums(owner='o/3', ")
