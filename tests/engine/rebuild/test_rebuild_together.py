"""Several views rebuilt in one pass over the log, as if each had been rebuilt by itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import memory
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions, rebuild_together
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.rebuild.tasks import BulkJob
from leftfold.memory import World
from leftfold.model.view import View
from leftfold.ports.bulk import CommittedLog
from leftfold.testing import fold
from tests.engine.rebuild.test_rebuild_resume import stopping
from tests.engine.rebuild.test_rebuild_swap import live, rebuild
from tests.ledger import app, by_owner, by_tag, histories, stranger, summary

VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)


@pytest.fixture
def world() -> Iterator[World]:
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send_many(list(histories(stranger(5), 200, poison=0.01)))
        yield world


def test_each_is_what_it_would_be_alone(world: World) -> None:
    rebuilds = [rebuild(world, view) for view in VIEWS]
    results = rebuild_together(rebuilds, rebuilds[0].plan())
    assert [(result.view, result.agreement, result.swapped) for result in results] == [
        (view.name, Agreement.EQUAL, True) for view in VIEWS
    ]
    for view, result in zip(VIEWS, results, strict=True):
        alone = rebuild(world, view, hold=True).run()
        assert (result.checksum, result.rows, result.parked) == (alone.checksum, alone.rows, alone.parked)
    assert results[0].parked, "a poisoned row is parked in a pass, too"


def test_each_partition_is_read_once(world: World) -> None:
    reads: list[int] = []

    class Counted(CommittedLog):
        def read(self, part: Any) -> Any:
            reads.append(part.partition)
            return super().read(part)

    rebuilds = [
        Rebuild(
            view,
            world.store,
            open_log=lambda: Counted(world.log.reader()),
            open_reader=world.log.reader,
            open_sink=lambda: world.store,
            options=RebuildOptions(keep=0, patience=0.0),
        )
        for view in VIEWS
    ]
    rebuild_together(rebuilds, rebuilds[0].plan())
    assert sorted(reads) == [0, 1, 2, 3]


def test_one_that_goes_on_folds_the_rest_by_itself(world: World) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopping(rebuild(world, summary, fold="v1"), 2, KeyboardInterrupt()).run()
    world.client.send_many(list(histories(stranger(6), 30)))
    rebuilds = [rebuild(world, view, fold="v1") for view in VIEWS]
    results = rebuild_together(rebuilds, rebuilds[0].plan())
    assert all(result.swapped for result in results)
    events = [recorded.event for recorded in world.events("ledgers")]
    assert dict(world.views[by_tag].items()) == fold(by_tag, *events)
    assert results[0].events < results[1].events


def test_interrupted_all_of_them_are_kept(world: World) -> None:
    def run(jobs: Any, plan: Any, tell: Any) -> Any:
        job: BulkJob = jobs[0]
        next(job.fold_streams((part for task in plan.tasks for part in task), tell))
        raise KeyboardInterrupt

    before = {view.name: live(world, view).id for view in VIEWS}
    rebuilds = [rebuild(world, view, fold="v1") for view in VIEWS]
    with pytest.raises(KeyboardInterrupt):
        rebuild_together(rebuilds, rebuilds[0].plan(), run)
    assert {view.name: live(world, view).id for view in VIEWS} == before
    assert rebuild(world, summary, fold="v1").run().swapped
