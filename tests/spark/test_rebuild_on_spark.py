"""Rebuilds on real Spark, Kafka and Redis give what the projector and the fold in memory give."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any

import pytest

from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.rebuild.tasks import BulkJob, ProgressCallback
from leftfold.errors import Fenced
from leftfold.ports.bulk import BucketResult, BulkRow
from leftfold.ports.flush import Phase
from leftfold.redis import RedisBulkSink
from leftfold.testing import fold
from tests.domains.ledger import by_owner, by_tag, summary
from tests.servers import secret_url
from tests.spark.conftest import Shop
from tests.spark.oracle import logged
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("view", [summary, by_owner, by_tag], ids=lambda view: view.name)
def test_a_rebuild_on_spark_equals_the_tail(shop: Shop, view: Any) -> None:
    before = shop.views[view].describe()
    assert before.rows > 5
    result = shop.rebuild(view).run()
    assert result.agreement is Agreement.EQUAL, str(result)
    after = shop.views[view].describe()
    assert after.generation == result.generation != before.generation
    assert (after.checksum, after.rows, after.parked) == (before.checksum, before.rows, before.parked)


@pytest.mark.parametrize("view", [by_owner, by_tag], ids=lambda view: view.name)
def test_rows_equal_the_fold_in_memory(shop: Shop, view: Any) -> None:
    assert dict(shop.views[view].items()) == fold(view, *logged(shop))


def test_rows_that_are_not_parked_equal_the_fold_in_memory(shop: Shop) -> None:
    parked = shop.views[summary].describe().parked
    assert parked, "the history holds events that the fold cannot digest"
    good = [event for event in logged(shop) if event.ledger not in parked]
    rows = {key: row for key, row in shop.views[summary].items() if key not in parked}
    assert rows == fold(summary, *good)


def test_nothing_aborted_is_in_any_row(shop: Shop) -> None:
    assert shop.views[summary].get("l-aborted") is None
    assert shop.views[by_owner].get("aborted") is None
    assert shop.views[by_tag].get("aborted") is None


def test_a_late_executor_cannot_write_after_the_swap(shop: Shop) -> None:
    shop.rebuild(by_owner).run()
    generation = shop.store.registry(by_owner.name).live_of(by_owner.hash)
    assert generation is not None
    before = shop.views[by_owner].describe()
    sink, late = RedisBulkSink(shop.redis), BulkRow("by-a-late-one", (b"1", b"true"), None, ("=1",))
    with pytest.raises(Fenced):
        sink.write(generation, 0, by_owner.rows.columns, by_owner.rows.indexes, [late])
    sink.close()
    assert shop.views[by_owner].describe().checksum == before.checksum
    assert shop.views[by_owner].get("by-a-late-one") is None


@pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)
def test_two_attempts_of_every_task_at_once_end_as_one(shop: Shop, view: Any) -> None:
    """As speculation has it: each bucket has the result that was noted first."""
    rebuild = shop.rebuild(view)
    once = rebuild._run

    def twice(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        with ThreadPoolExecutor(2) as threads:
            attempts = [threads.submit(once, job, plan, tell) for _ in range(2)]
            one, other = (sorted(attempt.result(), key=attrgetter("bucket")) for attempt in attempts)
        assert one == other
        return one

    rebuild._run = twice
    assert rebuild.run().agreement is Agreement.EQUAL


def test_ctrl_c_leaves_the_live_generation_alone(shop: Shop) -> None:
    before = shop.store.registry(summary.name)
    command = [sys.executable, "-m", "leftfold.cli", "rebuild", summary.name, "--engine", "spark"]
    command += ["--app", "tests.domains.ledger:app"]
    brokers = ["--kafka", shop.kafka.bootstrap_servers, "--redis", secret_url(shop.redis)]
    process = subprocess.Popen([*command, *brokers], stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_until(
            lambda: any(g.phase is Phase.BULK for g in shop.store.registry(summary.name).generations.values()),
            "the rebuild to begin its generation",
            running=lambda: process.poll() is None,
        )
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        told = process.communicate(timeout=240.0)[1]
    finally:
        process.kill()
    assert process.returncode == 130, told
    after = shop.store.registry(summary.name)
    assert after.live == before.live
    assert after.live_of(summary.hash) == before.live_of(summary.hash)
    assert "is as it was" in told
    assert "Traceback" not in told, told
    assert told.rstrip().splitlines()[-1].startswith(f"interrupted; the live generation of {summary.name} is as it was")
