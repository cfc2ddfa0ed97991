"""A topic that keeps its id and lost its last events, as on a broker restored from an old disk, is another log."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from leftfold import QueryView
from leftfold.client import Views
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.refresh import Refresh, computed, write_computed
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.rebuild.tasks import BulkJob, ProgressCallback
from leftfold.engine.views.generations import change
from leftfold.errors import ConfigurationError
from leftfold.memory import MemoryLog, MemoryViewStore
from leftfold.model.position import Position
from leftfold.ports.bulk import BucketResult
from leftfold.ports.flush import BucketFlush, Phase
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.runtime.operations.survey import Survey
from tests.domains.ledger import Moved, by_owner, summary
from tests.domains.ledger_world import ledger_world, live, rebuild
from tests.engine.committed_log import CommittedLog
from tests.engine.fold_bench import TOPIC
from tests.engine.views.deployments import Deploys, view_of

SENTENCE = (
    rf"view spelled is ahead of its log: {TOPIC}\[\d\] ended at \d+ when it was folded up to offset \d+; .* "
    r"Build it from what is there: leftfold rebuild spelled$"
)


@pytest.fixture
def shop() -> Deploys:
    """Ten events of a topic with an id, folded."""
    return Deploys.begun("projector", 10, **{TOPIC: "one"})


def cut(shop: Deploys, left: int = 1) -> None:
    """Every partition keeps its first records only; what is written from now on is counted from there."""
    for records in shop.bench.log.topics[TOPIC]:
        del records[left:]


def fill(shop: Deploys) -> None:
    """Clients fill the topic beyond its former end."""
    shop.write(40)


def stopped(shop: Deploys) -> list[str]:
    return [details["why"] for details in shop.bench.reports.of("view stopped")]


def assert_refused(why: object) -> None:
    with pytest.raises(ConfigurationError, match=SENTENCE):
        raise ConfigurationError(why)


def is_of_log(shop: Deploys) -> bool:
    """Whether the live rows are spelled as the events that the log holds now spell them."""
    events = [json.loads(record.value or b"") for records in shop.bench.log.topics[TOPIC] for record in records]
    return shop.live() == {of: "a" * count for of, count in Counter(event["household"] for event in events).items()}


def test_a_projector_that_starts_ahead_of_its_log_stops_until_a_rebuild(shop: Deploys) -> None:
    shop.stop("projector")
    cut(shop)
    before = shop.live()
    shop.join("a", "projector")
    assert shop.projectors["projector"].writers() == []
    (why,) = stopped(shop)
    assert_refused(why)
    fill(shop)
    shop.settle()
    shop.restart("a", "projector")
    shop.settle()
    assert shop.live() == before, "filled again, and read by another process"
    result = shop.rebuild("a")
    assert (result.swapped, result.agreement) == (True, Agreement.UNKNOWN)
    assert "is ahead of the log: " in result.why
    shop.fold(5)
    assert is_of_log(shop)
    with pytest.raises(ConfigurationError, match=SENTENCE):
        shop.promote("a", "kept")


def test_a_writer_that_reads_its_checkpoints_again_looks_at_the_end_of_the_log(shop: Deploys) -> None:
    projector = shop.projectors["projector"]
    cut(shop)
    (group,) = projector._groups
    projector._step_aside(group.writers)
    group.writers.clear()
    shop.settle()
    assert projector.writers() == []
    assert_refused(*stopped(shop))


def test_a_stream_on_spark_does_not_follow_a_generation_ahead_of_the_log(shop: Deploys) -> None:
    shop.stop("projector")
    cut(shop)
    lifecycle = shop.lifecycle("a")
    (generation,) = lifecycle.look().values()
    assert lifecycle.checkpoints(generation) is None
    assert lifecycle.look() == {}
    assert_refused(*stopped(shop))


def test_a_projector_at_the_end_of_its_log_or_before_it_continues(shop: Deploys) -> None:
    shop.restart("a", "projector")
    shop.fold(5)
    shop.stop("projector")
    shop.write(5)
    shop.join("a", "projector")
    assert stopped(shop) == []
    assert is_of_log(shop)
    assert shop.generation(Phase.LIVE).cut == ""


def test_twin_a_projector_that_does_not_look_continues_once_the_topic_is_filled(
    shop: Deploys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leftfold.engine.views.generation_lifecycle.note_cut", lambda *given: "")
    shop.stop("projector")
    cut(shop)
    shop.join("a", "projector")
    fill(shop)
    shop.settle()
    assert stopped(shop) == []
    assert not is_of_log(shop)


def test_status_verify_and_promote_name_a_view_ahead_of_its_log(shop: Deploys) -> None:
    shop.rebuild("a", hold=True)
    shop.settle()
    shop.stop("projector")
    cut(shop)
    shop.join("a", "projector")
    fill(shop)
    survey = Survey(None, None)
    list(survey._view(view_of("a"), shop.store, ClusterState("", "")))
    assert len(survey.problems) == 2, "the live one and the held one"
    for problem in survey.problems:
        assert_refused(problem)
    shop.assert_refused(SENTENCE)


@pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)
def test_a_rebuild_replaces_a_live_generation_ahead_of_the_log_without_waiting_for_its_end(view: Any) -> None:
    """No projector has noticed it."""
    with ledger_world(60) as world:
        old = live(world, view)
        partition = max(
            range(len(world.log.of("ledgers.events"))), key=lambda p: len(world.log.of("ledgers.events")[p])
        )
        records = world.log.of("ledgers.events")[partition]
        end = len(records)
        del records[end // 2 :]
        result = rebuild(world, view, keep=600.0, timeout=0.0).run()
        assert (result.swapped, result.agreement) == (True, Agreement.UNKNOWN)
        assert f"ledgers.events[{partition}] ended at {end // 2} when it was folded up to offset {end}" in result.why
        assert f"predecessor {old.id}: not compared ({old.id} is ahead of the log: " in str(result)
        assert world.store.registry(view.name).generations[old.id].phase is Phase.KEPT


@pytest.mark.parametrize("phase", [Phase.BULK, Phase.SEALED])
def test_a_rebuild_does_not_continue_a_generation_ahead_of_the_log(shop: Deploys, phase: Phase) -> None:
    held = shop.rebuild("a", hold=True).generation
    shop.stop("projector")
    store, registry = shop.store, shop.store.registry("spelled")
    begun = registry.generations[held].in_phase(phase)
    for bucket, checkpoint in store.checkpoints(begun).items() if phase is Phase.BULK else ():
        moved = replace(checkpoint, position=Position(), phase=phase, token="bulk")
        assert store.flush([BucketFlush(begun, bucket, checkpoint.token, moved, (), ())])
    change(store, "spelled", lambda registry: registry.with_generation(begun))
    cut(shop)
    result = shop.rebuild("a")
    assert (result.swapped, result.generation != held) == (True, True)
    assert is_of_log(shop)
    assert held not in store.registry("spelled").generations


def test_a_held_generation_waits_until_the_live_one_ahead_of_the_log_is_replaced_by_it(shop: Deploys) -> None:
    shop.stop("projector")
    cut(shop)
    before = shop.live()
    assert "is ahead of the log: " in shop.rebuild("a", hold=True, timeout=0.0).why
    shop.join("a", "projector")
    fill(shop)
    shop.settle()
    assert shop.live() == before
    assert shop.promote("a").swapped
    assert is_of_log(shop)


@dataclass(frozen=True)
class Count:
    owner: str
    moves: int


counts = QueryView("counts", events=Moved, row=Count, key=lambda row: row.owner, query="SELECT 1")


def refresh_of(log: MemoryLog, store: MemoryViewStore) -> Refresh:
    """A refresh that computes one row that says how many records the log holds."""

    def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        return list(write_computed(job, [computed(counts, Count("all", plan.events), plan.buckets)]))

    return Refresh(
        counts, store, open_log=lambda: CommittedLog(log.reader()), open_reader=log.reader, open_sink=lambda: store,
        run=run,
    )  # fmt: skip


def test_a_refresh_replaces_rows_ahead_of_the_log() -> None:
    log, store = MemoryLog(), MemoryViewStore()
    log.create("ledgers.events", 1)
    for number in range(5):
        log.append("ledgers.events", 0, b"k", b"%d" % number, [("ce_decision", b"1/1")])
    first = refresh_of(log, store).run()
    del log.of("ledgers.events")[0][2:]
    result = refresh_of(log, store).run()
    assert (result.swapped, result.agreement) == (True, Agreement.UNKNOWN)
    cut_at = "ledgers.events[0] ended at 2 when it was folded up to offset 5"
    assert result.why == f"{first.generation} is ahead of the log: {cut_at}"
    assert Views(store)[counts].get("all") == Count("all", 2)
