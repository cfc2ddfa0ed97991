"""Views folded by Spark streaming on real servers equal the fold in memory, with others at work beside them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Steps
from hypothesis import strategies as st

from leftfold import memory
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions, rebuild_together
from leftfold.engine.rebuild.result import Agreement, RebuildResult
from leftfold.engine.views.generations import open_generation
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.ports.flush import Phase
from leftfold.redis import RedisBulkSink
from leftfold.redis.keys import BucketKeys
from leftfold.spark.core.job import spark_pass_runner
from tests.domains.ledger import Close, LedgerCommand, Move, Open, app, by_owner, summary
from tests.redis.server import RedisServer
from tests.spark.conftest import Shop
from tests.spark.streaming.streams import VIEWS, Streams
from tests.threads import Background, projecting
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.servers

Start = Callable[..., Streams]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
_numbers = itertools.count()

steps = st.tuples(
    st.sampled_from(["open", "move", "move", "move", "close"]),
    st.integers(0, 4),
    st.integers(0, 2),
    st.decimals("-99.99", "99.99", places=2),
    st.lists(st.integers(0, 3), max_size=3),
)


def command(prefix: str, step: Any) -> LedgerCommand:
    """A step as a command on names of this example only."""
    what, ledger, owner, amount, tags = step
    names = {"ledger": f"{prefix}l-{ledger}", "owner": f"{prefix}o-{owner}"}
    match what:
        case "open":
            return Open(**names)
        case "close":
            return Close(**names)
        case _:
            shown = Decimal("1.00") if amount == Decimal("66.60") else amount
            return Move(**names, amount=shown, tags=tuple(f"{prefix}t-{tag}" for tag in tags))


def test_streams_projector_rebuild_and_memory_agree_on_any_history(start: Start, shop: Shop) -> None:
    """The rebuild comes last, since it reads every history that is in the log."""
    streams, memories = start(), dict[str, dict[str, Any]]()

    @given(st.lists(steps, min_size=20, max_size=60))
    @settings(
        max_examples=3,
        deadline=None,
        derandomize=True,
        phases=[Steps.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    def agree(history: list[Any]) -> None:
        prefix = f"h{next(_numbers)}/"
        commands = [command(prefix, step) for step in history]
        with memory(app, now=NOW) as world:
            world.client.send_many(commands)
            position = shop.send(commands)
            streams.settle(position)
            for view in VIEWS:
                shop.views[view].wait_reached(position, timeout=WAIT_SECONDS)
            memories[prefix] = {view.name: dict(world.views[view].items()) for view in VIEWS}
        for view in VIEWS:
            assert mine(shop.views, view, prefix) == memories[prefix][view.name], f"{view.name} by the projector"
            assert mine(streams.views, view, prefix) == memories[prefix][view.name], f"{view.name} by a stream"

    agree()
    rebuilds = [shop.rebuild(view) for view in VIEWS]
    results = rebuild_together(rebuilds, rebuilds[0].plan(), spark_pass_runner(shop.spark))
    assert [result.agreement for result in results] == [Agreement.EQUAL] * len(VIEWS)
    for prefix, expected in memories.items():
        for view in VIEWS:
            assert mine(shop.views, view, prefix) == expected[view.name], f"{view.name} by a rebuild"
    streams.assert_equal_to_the_log()
    assert streams.said("out of step") == 0
    assert streams.said("streaming") == len(streams.streams)


def mine(views: Any, view: Any, prefix: str) -> dict[Any, Any]:
    return {key: row for key, row in views[view].items() if key.startswith(prefix)}


def test_a_stream_and_a_projector_of_one_view_do_no_harm(start: Start, shop: Shop) -> None:
    streams = start(summary, by_owner)
    streams.settle(streams.write(41, 60))
    with Background(projecting((summary, by_owner), partial(KafkaLogReader, shop.kafka), streams.store)):
        streams.settle(streams.write(42, 60))
        numbers = itertools.count(43)

        def is_noticed() -> bool:
            streams.write(next(numbers), 10)
            return streams.said("out of step") > 0

        streams.until(is_noticed, "the stream to notice the projector")
    streams.settle(streams.write(40, 60))
    streams.assert_equal_to_the_log()


def test_the_directory_of_temporary_files_may_have_any_name(
    start: Start, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "für %20 alle").mkdir()
    monkeypatch.setattr(shop.spark.sparkContext, "_temp_dir", str(tmp_path / "für %20 alle"))
    streams = start(by_owner)
    streams.settle(streams.write(64, 20))
    assert not streams.reports.of("waiting"), str(streams.reports)


def test_an_unreadable_checkpoint_of_a_held_generation_leaves_the_live_one_going(
    start: Start, redis: RedisServer
) -> None:
    streams = start(summary)
    streams.settle(streams.write(63))
    live = streams.store.registry(summary.name).live_of(summary.hash)
    assert live is not None
    held = open_generation(streams.store, summary, live.topics, Phase.HELD)
    with redis.client() as client:
        client.hset(BucketKeys(held, 2).checkpoint, "phase", "a phase of a newer version")
    (stream,), position = streams.streams, streams.write(64)
    streams.until(lambda: bool(stream.stopped) or streams.covers(summary, position), "the live rows to continue")
    assert stream.stopped == ""
    streams.settle(streams.write(65))
    (details,) = streams.reports.of("view stopped")
    assert held.id in details["why"]
    assert streams.said("streaming") == 2, "it does not start over at each look"


def test_a_rebuild_goes_live_under_a_stream(start: Start, shop: Shop) -> None:
    streams = start(summary)
    streams.settle(streams.write(61))
    results: list[RebuildResult] = []
    rebuild = Rebuild(
        summary,
        streams.store,
        open_log=partial(KafkaBulkLog, shop.kafka),
        open_reader=partial(KafkaLogReader, shop.kafka),
        open_sink=partial(RedisBulkSink, streams.redis),
        options=RebuildOptions(keep=0),
    )
    thread = threading.Thread(target=lambda: results.append(rebuild.run()))
    thread.start()
    streams.until(lambda: not thread.is_alive(), "the rebuild to end")
    (result,) = results
    assert result.agreement is Agreement.EQUAL
    assert streams.views[summary].describe().generation == result.generation != result.predecessor
    streams.settle(streams.write(62))
    streams.assert_equal_to_the_log()
