"""Incremental query views on real Kafka, Spark and Redis: whatever happens, they come to the batch answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from leftfold import App
from leftfold.engine.rebuild.result import Agreement
from leftfold.errors import ConfigurationError, Fenced
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.model.computed_views import QueryView
from leftfold.model.position import Position
from leftfold.redis import RedisViewStore
from leftfold.runtime.operations.survey import Survey
from leftfold.runtime.workers import query_workers as query_streams
from leftfold.spark.queries.compute import refreshed
from tests.domains.ledger import Move, Moved, app
from tests.servers import secret_url
from tests.spark.conftest import WAIT_SECONDS, Shop
from tests.spark.queries import OwnerSums, balances, hourly, owner_sums, regions
from tests.spark.query_streams import Streaming, made_elsewhere, places, refreshing, wait_committed
from tests.spark.trusting_stream import Trusting
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _nothing_left(shop: Shop) -> Iterator[None]:
    """Each test begins without generations of these views."""
    yield
    for name in (owner_sums.name, hourly.name, "regions"):
        for generation in shop.store.registry(name).generations.values():
            shop.store.unlink(generation)
        shop.store._client.execute_command("DEL", f"view:{name}")


def streaming(
    shop: Shop, checkpoints: Path, view: QueryView[Any, Any] = owner_sums, kind: Any = Streaming
) -> Streaming:
    store = RedisViewStore(shop.redis)  # of its own, as in another process
    made: Streaming = kind(shop.spark, view, places(shop.kafka, shop.redis, store, checkpoints))
    return made


def move(shop: Shop, owner: str, *amounts: str) -> Position:
    commands = [Move(ledger=f"l-{owner}", owner=owner, amount=Decimal(amount)) for amount in amounts]
    with KafkaClient(app.name, shop.kafka) as client:
        *_, last = client.send_many(commands, timeout=WAIT_SECONDS)
        return last.position  # type: ignore[union-attr]  # all are accepted


def agreement(shop: Shop, view: QueryView[Any, Any] = owner_sums) -> Agreement:
    """Whether the stream's rows are those of the batch at the very same position."""
    refresh = refreshing(shop.spark, shop.kafka, shop.redis, shop.store, view, swap_anyway=True)
    plan = refresh.plan()
    wait_until(lambda: refresh.stands_at(plan), lambda: f"{shop.views[view].describe().position} to be the plan's")
    return refresh.run(plan).agreement


def caught_up(shop: Shop, position: Position, view: QueryView[Any, Any] = owner_sums) -> None:
    shop.views[view].wait_reached(position, timeout=WAIT_SECONDS)


def test_a_stream_gives_the_rows_of_the_batch(shop: Shop, tmp_path: Path) -> None:
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        position = move(shop, "streamed", "1.25", "-0.50", "3.00")
        row = shop.views[owner_sums].get("streamed", after=position, timeout=WAIT_SECONDS)
        assert row == OwnerSums("streamed", 3, Decimal("3.75"), Decimal("-0.50"), Decimal("3.00"))
        caught_up(shop, move(shop, "streamed", "1.00"))
        assert shop.views[owner_sums].find(moves=4)["streamed"].total == Decimal("4.75")
        assert agreement(shop) is Agreement.EQUAL


def test_a_stream_whose_place_a_rebuild_took_ends(shop: Shop, tmp_path: Path) -> None:
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        assert agreement(shop) is Agreement.EQUAL
        move(shop, "replaced", "1.00")
        error = stream.wait_ended()
        assert isinstance(error, Fenced)
        assert "is live instead of" in str(error)


def test_a_stream_goes_on_where_it_stopped(shop: Shop, tmp_path: Path) -> None:
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        caught_up(shop, move(shop, "stopped", "1.00"))
    generation = shop.views[owner_sums].describe().generation
    position = move(shop, "stopped", "2.00")
    with streaming(shop, tmp_path) as again:
        caught_up(shop, position)
        assert again.heard("stream continues")
    found = shop.views[owner_sums].describe()
    assert found.generation == generation
    assert agreement(shop) is Agreement.EQUAL


def keys_of(shop: Shop) -> dict[bytes, bytes]:
    client: Any = shop.store._client
    names = [*client.keys("v:{owner_sums:*"), *client.keys("view:owner_sums")]
    return {name: client.dump(name) for name in names}


def put_back(shop: Shop, keys: dict[bytes, bytes]) -> None:
    client: Any = shop.store._client
    with client.pipeline() as pipe:
        for name in keys_of(shop):
            pipe.execute_command("DEL", name)
        for name, dump in keys.items():
            pipe.execute_command("RESTORE", name, 0, dump)
        pipe.execute()


@pytest.mark.faults
@pytest.mark.parametrize(
    ("kind", "expected"), [(Streaming, Agreement.EQUAL), (Trusting, Agreement.DIFFERENT)], ids=["marks", "twin"]
)
def test_a_redis_that_went_back_is_noticed_and_only_the_marks_can_tell(
    shop: Shop, tmp_path: Path, kind: Any, expected: Agreement
) -> None:
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        caught_up(shop, move(shop, "back", "1.00"))
        before = keys_of(shop)
        caught_up(shop, move(shop, "forgotten", "2.00"))
        caught_up(shop, move(shop, "forgotten", "3.00"))
        wait_committed(shop, tmp_path)
    put_back(shop, before)
    position = move(shop, "back", "4.00")
    with streaming(shop, tmp_path, kind=kind) as again:
        caught_up(shop, position)
        assert again.heard("computed from the start" if kind is Streaming else "stream continues")
    assert agreement(shop) is expected


@pytest.mark.faults
@pytest.mark.parametrize("flushed", [False, True], ids=["rolled back", "flushed"])
def test_a_redis_that_loses_what_was_written_ends_the_run_and_the_next_begins_anew(
    shop: Shop, tmp_path: Path, flushed: bool
) -> None:
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        before = {} if flushed else keys_of(shop)
        caught_up(shop, move(shop, "under", "1.00"))
        put_back(shop, before)
        position = move(shop, "under", "2.00")
        assert isinstance(stream.wait_ended(), Fenced)
    with streaming(shop, tmp_path) as again:
        again.wait_heard("generation live")
        caught_up(shop, position)
    assert agreement(shop) is Agreement.EQUAL


def test_of_two_streams_in_one_spark_the_older_gives_way(shop: Shop, tmp_path: Path) -> None:
    with streaming(shop, tmp_path) as older:
        older.wait_heard("generation live")
        with streaming(shop, tmp_path) as younger:
            assert isinstance(older.wait_ended(), Fenced)
            caught_up(shop, move(shop, "two", "1.00"))
            assert younger.heard("stream continues")
    assert agreement(shop) is Agreement.EQUAL


def test_a_reference_file_that_changed_begins_anew(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "owners.csv"
    file.write_text("owner,region\no/1,north\n")
    view = regions(file)
    with streaming(shop, tmp_path / "c", view) as stream:
        stream.wait_heard("generation live")
    file.write_text("owner,region\no/1,south\n")
    with streaming(shop, tmp_path / "c", view) as again:
        again.wait_heard("generation live")
        assert again.heard("computed from the start")
    assert set(dict(shop.views[view].items())) == {"south", "nowhere"}
    assert agreement(shop, view) is Agreement.EQUAL


def test_two_groups_with_one_key_end_the_stream(shop: Shop, tmp_path: Path) -> None:
    def first(row: OwnerSums) -> str:
        return row.owner[:1]

    view = QueryView("owner_sums", events=Moved, row=OwnerSums, key=first, query=owner_sums.query)
    with streaming(shop, tmp_path, view) as stream:
        assert "the query gives several rows for the key " in str(stream.wait_ended())


def test_a_view_that_waits_for_late_events_leaves_later_ones_out_and_says_so(shop: Shop, tmp_path: Path) -> None:
    noon = datetime(2040, 1, 1, 12, tzinfo=UTC)
    with streaming(shop, tmp_path, hourly) as stream, KafkaClient(app.name, shop.kafka) as client:
        stream.wait_heard("generation live")
        # The fifth is ten hours late; Spark tells that by the watermark of the batch before, hence two at nine o'clock.
        for hours in (-1, 0, 9, 9, -1, 10):
            command = Move(ledger="l-late", owner="late", amount=Decimal(1))
            at = noon + timedelta(hours=hours)
            caught_up(shop, client.send(command, at=at, timeout=WAIT_SECONDS).position, hourly)
        reader = shop.views[hourly]
        found = {hours: reader.get(noon + timedelta(hours=hours)) for hours in (-1, 0, 9, 10)}
        assert {hours: row.moves for hours, row in found.items() if row} == {-1: 1, 0: 1, 9: 2, 10: 1}
        assert reader.describe().approximate
        survey = Survey(shop.kafka.bootstrap_servers, secret_url(shop.redis))
        (told,) = survey.views(App("ledgers", partitions=app.partitions, deciders=app.deciders, views=[hourly]))
        assert told["approximate"]
    assert agreement(shop, hourly) is Agreement.UNKNOWN, "the batch counts the late event, which is no error"
    row = reader.get(noon - timedelta(hours=1))
    assert row is not None
    assert row.moves == 2


def test_waiting_for_late_events_is_for_streams_only(shop: Shop) -> None:
    parts: dict[str, Any] = {"events": Moved, "row": OwnerSums, "key": lambda r: r.owner, "late": timedelta(hours=1)}
    batch = QueryView("v", query="SELECT owner FROM Moved", **parts)
    with pytest.raises(ConfigurationError, match="view v: late= is for what a stream keeps, and it has no GROUP BY"):
        refreshed(shop.spark, batch)
    with pytest.raises(ConfigurationError, match="view v: late= is about _time, which the query never mentions"):
        refreshed(shop.spark, QueryView("v", query="SELECT owner, count(*) AS n FROM Moved GROUP BY owner", **parts))


def test_a_query_that_no_stream_can_keep_is_refused(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="view balances cannot be kept by a stream: it has WITH"):
        streaming(shop, tmp_path, balances)


@pytest.mark.faults
def test_a_stream_does_not_go_on_with_the_rows_of_another_topic(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint has the offsets of that topic, and they may well be there in this one, of other events."""
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        caught_up(shop, move(shop, "elsewhere", "1.00"))
        wait_committed(shop, tmp_path)
    other = made_elsewhere(shop, owner_sums)
    with streaming(shop, tmp_path) as again:
        error = again.wait_ended()
    assert isinstance(error, ConfigurationError)
    assert f"generation {other.id} of view owner_sums was folded from another ledgers.events" in str(error)
    assert str(error).endswith("build it from this one: leftfold rebuild owner_sums")
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", shop.kafka.bootstrap_servers)
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", secret_url(shop.redis))
    monkeypatch.setenv("LEFTFOLD_SPARK_CHECKPOINTS", str(tmp_path))
    monkeypatch.setattr(query_streams, "_LOOK_SECONDS", 0.05)
    said, stop = list[tuple[str, Any]](), threading.Event()

    def heard(what: str) -> list[Any]:
        return [details for one, details in said if one == what]

    kept = query_streams.QueryViewThread(
        shop.spark, owner_sums, shuffles=2, keep=0, archive="", stop=stop, report=lambda *one: said.append(one)
    )
    kept.start()
    try:
        wait_until(lambda: bool(heard("view stopped")), lambda: f"the stop: {said}")
        result = refreshing(shop.spark, shop.kafka, shop.redis, shop.store, owner_sums).run()
        assert (result.swapped, result.why) == (True, f"{other.id} was computed from other topics")
        wait_until(lambda: bool(heard("computed from the start")), lambda: f"the stream of this topic: {said}")
        caught_up(shop, move(shop, "elsewhere", "2.00"))
    finally:
        stop.set()
        kept.join(240.0)
    assert heard("view stopped") == [{"view": "owner_sums", "why": str(error)}], "once"
    assert kept.error is None
    assert agreement(shop) is Agreement.EQUAL
