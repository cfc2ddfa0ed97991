"""An empty text where a key should be stops neither a rebuild on Spark nor the rows of a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from leftfold import FoldView, QueryView, SpreadView
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.model.keys import NO_ROW
from leftfold.redis import RedisViewStore
from leftfold.spark.queries.query_refresh import query_runner
from tests.domains.ledger import Move, Moved, Total, add, app, count
from tests.spark.conftest import WAIT_SECONDS, Shop
from tests.spark.oracle import logged
from tests.spark.queries import OwnerSums, owner_sums
from tests.spark.query_streams import Streaming, places, refreshing

pytestmark = pytest.mark.servers

HIDDEN = "o/3"


def shown(owner: str) -> str:
    return "" if owner == HIDDEN else owner


def owner_of(event: Moved) -> str:
    return shown(event.owner)


def owners_of(event: Moved) -> Iterable[tuple[str, Decimal]]:
    return [("all", event.amount), (shown(event.owner), event.amount)]


def key_of(row: OwnerSums) -> str:
    return shown(row.owner)


keyed = FoldView("keyed", events=Moved, row=Total, key=owner_of, evolve=add)
spread = SpreadView("spread", events=Moved, row=Total, each=owners_of, evolve=count)
sums = QueryView("sums", events=Moved, row=OwnerSums, key=key_of, query=owner_sums.query)


@pytest.fixture(autouse=True)
def _nothing_left(shop: Shop) -> Iterator[None]:
    yield
    for view in (keyed, spread, sums):
        for generation in shop.store.registry(view.name).generations.values():
            shop.store.unlink(generation)
        shop.store._client.execute_command("DEL", f"view:{view.name}")


def moves(shop: Shop) -> list[Moved]:
    return [event for event in logged(shop) if isinstance(event, Moved)]


@pytest.mark.parametrize("view", [keyed, spread], ids=lambda view: view.name)
def test_a_rebuild_on_spark_parks_such_events_by_themselves(shop: Shop, view: Any) -> None:
    shop.rebuild(view, patience=0.0).run()
    (why,) = shop.views[view].describe().parked.values()
    hidden = [move for move in moves(shop) if move.owner == HIDDEN]
    assert (why.error, why.waiting) == ("NoRowKey: a row key may not be empty", len(hidden))
    assert set(shop.views[view].describe().parked) == {NO_ROW}
    found = dict(shop.views[view].items())
    assert set(found) - {"all"} <= {move.owner for move in moves(shop)} - {HIDDEN}, "a total of zero has no row"
    assert len(found) >= 6


def test_rows_of_a_query_without_a_key_are_left_out_and_named(shop: Shop) -> None:
    told: list[str] = []
    refresh = refreshing(shop.spark, shop.kafka, shop.redis, shop.store, sums)
    refresh._run = query_runner(shop.spark, told.append)
    assert refresh.run().swapped
    assert set(dict(shop.views[sums].items())) == {move.owner for move in moves(shop)} - {HIDDEN}
    (line,) = told
    assert line.startswith("view sums: 1 row passed over, since a row key may not be empty: OwnerSums(owner='o/3', ")


def test_a_stream_of_a_query_goes_on_beside_such_a_row(shop: Shop, tmp_path: Path) -> None:
    where = places(shop.kafka, shop.redis, RedisViewStore(shop.redis), tmp_path)
    with Streaming(shop.spark, sums, where) as stream:
        stream.wait_heard("generation live")
        assert set(dict(shop.views[sums].items())) == {move.owner for move in moves(shop)} - {HIDDEN}
        for owner in (HIDDEN, "behind"):
            with KafkaClient(app.name, shop.kafka) as client:
                command = Move(ledger="l-1", owner=owner, amount=Decimal("1.00"))
                position = client.send(command, timeout=WAIT_SECONDS).position
        assert shop.views[sums].get("behind", after=position, timeout=WAIT_SECONDS) is not None
        said = [told["why"] for what, told in stream.told if what == "events passed over"]
        assert "OwnerSums(owner='o/3', " in said[-1]
        assert len(said) == 2, "each row that comes anew is told"
