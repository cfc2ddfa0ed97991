"""Rebuilds on real Spark, Kafka and Redis give what the projector and the fold in memory give, or one line of why not.

What a rebuild continues, compares and swaps is shown without Spark, in tests/engine/rebuild and tests/redis.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from pyspark import TaskContext

from leftfold import FoldView, SpreadView
from leftfold.engine.rebuild.rebuilder import Rebuild, rebuild_together
from leftfold.engine.rebuild.result import Agreement
from leftfold.errors import ContractError, InfrastructureError, LeftfoldError
from leftfold.ports.bulk import BulkLog, OpenBulkLog
from leftfold.ports.flush import Phase
from leftfold.redis import RedisBulkSink, RedisSettings
from leftfold.spark.core.job import spark_pass_runner
from tests.domains.ledger import Moved, Total, app, by_owner, count, summary
from tests.spark.conftest import Shop
from tests.spark.oracle import logged, truth
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


def test_rebuilds_on_spark_equal_the_projector_and_the_fold_in_memory(shop: Shop) -> None:
    """Each view alone and all of them in one pass; streams are folded in place, all else is sorted first."""
    before = {view.name: shop.views[view].describe() for view in app.views}
    assert all(found.rows > 5 for found in before.values())
    assert before[summary.name].parked, "the history holds events that the fold cannot digest"
    rebuilds = [shop.rebuild(view) for view in app.views]
    passed = rebuild_together(rebuilds, rebuilds[0].plan(), spark_pass_runner(shop.spark))
    alone = [shop.rebuild(view).run() for view in (summary, by_owner)]
    assert [(result.agreement, result.swapped) for result in (*passed, *alone)] == [(Agreement.EQUAL, True)] * 5
    for view, result in zip((*app.views, summary, by_owner), (*passed, *alone), strict=True):
        after, old = shop.views[view].describe(), before[view.name]
        assert old.generation not in (result.generation, after.generation)
        assert (after.checksum, after.rows, after.parked) == (old.checksum, old.rows, old.parked)
        rows = {key: row for key, row in shop.views[view].items() if key not in after.parked}
        assert rows == truth(shop, view)
    assert not [event for event in logged(shop) if event.ledger == "l-aborted"]


def untold(event: Moved) -> Iterable[tuple[str, Decimal]]:
    raise ValueError("no owner of this is known")


def never(row: Total | None, event: Moved) -> Total | None:
    raise ValueError("this fold digests nothing")


def broken_in_tasks(open_log: OpenBulkLog) -> BulkLog:
    if TaskContext.get() is None:
        return open_log()
    raise ZeroDivisionError("a factory of the caller fails")


def without_a_store(rebuild: Rebuild) -> None:
    rebuild._open_sink = partial(RedisBulkSink, RedisSettings(url="redis://127.0.0.1:1/0"))


def without_a_log(rebuild: Rebuild) -> None:
    rebuild._open_log = partial(broken_in_tasks, rebuild._open_log)


def as_it_is(rebuild: Rebuild) -> None:
    pass


@pytest.mark.parametrize(
    ("view", "spoil", "kind", "said"),
    [
        (SpreadView("lost", events=Moved, row=Total, each=untold, evolve=count), as_it_is, ContractError,
         r"^view lost stops at ledgers.events\[.*no owner of this is known"),
        (FoldView("picky", events=Moved, row=Total, evolve=never), as_it_is, ContractError,
         r"^view picky: more than 2 keys are parked, the first at ledgers.events\[.*ValueError: this fold digests"),
        (summary, without_a_store, InfrastructureError, "redis at 127.0.0.1:1 is not reachable"),
        (summary, without_a_log, InfrastructureError, "a factory of the caller fails"),
    ],
    ids=["an event without a row", "too many parked keys", "no store", "any other error"],
)  # fmt: skip
def test_what_fails_in_an_executor_is_reported_in_one_line_and_nothing_of_the_rebuild_stays(
    shop: Shop, view: Any, spoil: Callable[[Rebuild], None], kind: type[LeftfoldError], said: str
) -> None:
    before, rebuild = shop.store.registry(view.name), shop.rebuild(view, max_parked=2)
    spoil(rebuild)
    with pytest.raises(kind, match=said) as raised:
        rebuild.run()
    if spoil is not without_a_log:
        assert "\n" not in str(raised.value)
        assert "Traceback" not in str(raised.value)
    after = shop.store.registry(view.name)
    assert after.live == before.live
    assert after.generations.keys() <= before.generations.keys(), "what others left may have been swept"


def test_ctrl_c_leaves_the_live_generation_alone(shop: Shop) -> None:
    before = shop.store.registry(summary.name)
    command = [sys.executable, "-m", "leftfold.cli", "rebuild", summary.name, "--engine", "spark"]
    command += ["--app", "tests.domains.ledger:app", *shop.addresses]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_until(
            lambda: any(g.phase is Phase.BULK for g in shop.store.registry(summary.name).generations.values()),
            "the rebuild to begin its generation",
            running=lambda: process.poll() is None,
        )
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        reported = process.communicate(timeout=240.0)[1]
    finally:
        process.kill()
    assert process.returncode == 130, reported
    after = shop.store.registry(summary.name)
    assert after.live == before.live
    assert after.live_of(summary.hash) == before.live_of(summary.hash)
    assert "is as it was" in reported
    assert "Traceback" not in reported, reported
    assert (
        reported.rstrip()
        .splitlines()[-1]
        .startswith(f"interrupted; the live generation of {summary.name} is as it was")
    )
