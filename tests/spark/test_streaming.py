"""Views folded by Spark streaming on real servers equal the fold in memory, with others at work beside them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from leftfold import memory
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.engine.rebuild.result import Agreement, RebuildResult
from leftfold.engine.views.projector import Projector
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.redis import RedisBulkSink
from tests.domains.ledger import app, by_owner, by_tag, summary
from tests.spark.conftest import WAIT_SECONDS, Shop
from tests.spark.streams import VIEWS, Streams
from tests.spark.test_histories import NOW, command, steps
from tests.worker.receipts import behind

pytestmark = pytest.mark.servers

Start = Callable[..., Streams]
_numbers = itertools.count()


def test_streams_fold_the_log_and_follow_it(start: Start) -> None:
    streams = start()
    streams.settle(streams.write(31))
    streams.assert_equal_to_the_log()
    for seed in (32, 33):
        streams.settle(streams.write(seed, 40))
    streams.assert_equal_to_the_log()
    assert streams.said("out of step") == 0
    assert streams.said("streaming") == len(streams.streams)


def test_any_history_gives_the_rows_of_the_fold_in_memory(start: Start, shop: Shop) -> None:
    streams = start()

    @given(st.lists(steps, min_size=1, max_size=60))
    @settings(
        max_examples=8,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    def agrees(history: list[Any]) -> None:
        prefix = f"s{next(_numbers)}/"
        commands = [command(prefix, step) for step in history]
        with memory(app, now=NOW) as world, KafkaClient(app.name, shop.kafka) as client:
            world.client.send_many(commands)
            answers = client.send_many(commands, timeout=WAIT_SECONDS)
            streams.settle(behind(answers))
            for view in VIEWS:
                mine = {key: row for key, row in streams.views[view].items() if key.startswith(prefix)}
                assert mine == dict(world.views[view].items()), view.name

    agrees()
    assert streams.said("out of step") == 0


def test_a_stream_and_a_tail_of_one_view_do_no_harm(start: Start, shop: Shop) -> None:
    streams = start()
    stop = threading.Event()

    def follow() -> None:
        tail = Projector(VIEWS, lambda: KafkaLogReader(shop.kafka), streams.store)
        while not stop.is_set():
            tail.step()
        tail.close()

    streams.settle(streams.write(41, 60))
    thread = threading.Thread(target=follow)
    thread.start()
    try:
        for seed in (42, 43, 44):
            streams.settle(streams.write(seed, 60))
        streams.until(lambda: streams.said("out of step") > 0, "the stream to notice the tail")
    finally:
        stop.set()
        thread.join()
    streams.settle(streams.write(45, 60))
    streams.assert_equal_to_the_log()


@pytest.mark.faults
def test_two_drivers_of_one_view_do_no_harm(start: Start) -> None:
    one, other = start(by_owner, summary), start(by_owner, summary)
    for seed in (51, 52, 53):
        position = one.write(seed, 60)

        def both(at: Any = position) -> bool:
            for stream in other.streams:
                stream.step(0.05)
            return all(one.covers(view, at) for view in (by_owner, summary))

        one.until(both, "either of them to fold it")
    one.assert_equal_to_the_log()
    assert one.said("out of step") + other.said("out of step") > 0
    other.close()
    one.settle(one.write(54, 60))
    one.assert_equal_to_the_log()


@pytest.mark.parametrize("view", [summary, by_tag], ids=lambda view: view.name)
def test_a_rebuild_goes_live_under_a_stream(start: Start, shop: Shop, view: Any) -> None:
    streams = start(view)
    streams.settle(streams.write(61))
    results: list[RebuildResult] = []
    rebuild = Rebuild(
        view,
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
    assert streams.views[view].describe().generation == result.generation != result.predecessor
    streams.settle(streams.write(62))
    streams.assert_equal_to_the_log()
