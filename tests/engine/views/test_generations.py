"""Generations in the registry: how they are made, pointed at and found, and that each is of one topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from leftfold.engine.views.generations import Identities, change, empty_marks, followed, new_generation, open_generation
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.memory import MemoryViewStore
from leftfold.model.position import Position
from leftfold.ports.flush import Checkpoint, Phase, Registry, While, covered
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.runtime.operations.survey import Survey
from tests.domains.shop import household_spend, open_baskets
from tests.engine.fold_bench import PARTITIONS, TOPIC, FoldBench
from tests.engine.views.deployments import Deploys, view_of

TOPICS = {TOPIC: PARTITIONS}


def test_generations_are_numbered_and_differ_when_made_at_once() -> None:
    registry = Registry()
    first = new_generation(household_spend, registry, TOPICS, Phase.BULK)
    registry = registry.with_generation(first)
    ids = [new_generation(household_spend, registry, TOPICS, Phase.BULK).id for _ in range(20)]
    assert first.id.startswith("1-")
    assert all(id_.startswith("2-") for id_ in ids)
    assert len(set(ids)) > 1
    assert (first.buckets, new_generation(open_baskets, registry, TOPICS, Phase.BULK).buckets) == (16, PARTITIONS)


def test_a_new_generation_has_all_its_checkpoints_before_it_is_registered() -> None:
    store = MemoryViewStore()
    generation = open_generation(store, household_spend, TOPICS, Phase.BULK)
    assert store.registry("household_spend").generations == {generation.id: generation}
    assert store.checkpoints(generation) == {n: Checkpoint(Position(), phase=Phase.BULK) for n in range(16)}


def test_a_projector_follows_sealed_live_and_kept_generations_of_its_hash() -> None:
    store = MemoryViewStore()
    phases = [Phase.BULK, Phase.SEALED, Phase.LIVE, Phase.KEPT]
    made = [open_generation(store, household_spend, TOPICS, phase) for phase in phases]
    other = replace(made[1], id="9-other", hash="another")
    change(store, "household_spend", lambda r: r.with_generation(other))
    found = followed(store.registry("household_spend"), household_spend)
    assert {generation.phase for generation in found.values()} == set(phases) - {Phase.BULK}
    assert "9-other" not in found


def test_pointing_keeps_the_predecessor() -> None:
    store = MemoryViewStore()
    one, two = (open_generation(store, household_spend, TOPICS, Phase.SEALED) for _ in range(2))
    change(store, "household_spend", lambda r: r.pointed(one))
    registry = change(store, "household_spend", lambda r: r.pointed(two))
    assert registry.live == {household_spend.hash: two.id}
    assert {g.id: g.phase for g in registry.generations.values()} == {one.id: Phase.KEPT, two.id: Phase.LIVE}
    assert registry.without(two.id).live == {}


def test_a_change_of_the_registry_is_applied_to_its_latest_version() -> None:
    class Busy(MemoryViewStore):
        raced = False

        def change_registry(self, view: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
            if not self.raced:
                self.raced = True
                open_generation(self, household_spend, TOPICS, Phase.SEALED)
                return False
            return super().change_registry(view, before, after, while_)

    store = Busy()
    generation = new_generation(household_spend, Registry(), TOPICS, Phase.SEALED)
    registry = change(store, "household_spend", lambda r: r.with_generation(generation))
    assert len(registry.generations) == 2


def test_a_view_has_covered_what_its_least_bucket_has() -> None:
    bench = FoldBench(household_spend)
    bench.settle()
    generation = bench.live(household_spend)
    checkpoints = empty_marks(generation) | {n: Checkpoint(Position.at(TOPIC, 0, n)) for n in range(1, 16)}
    assert covered(generation, checkpoints).next_offset(TOPIC, 0) == 0
    checkpoints[0] = Checkpoint(Position.at(TOPIC, 0, 9))
    assert covered(generation, checkpoints).next_offset(TOPIC, 0) == 1


SENTENCE = (
    rf"folded from another {TOPIC} \(its id was one, and is two\): .* build it from this one: leftfold rebuild spelled"
)


@pytest.fixture
def shop() -> Deploys:
    """Ten events of a topic with an id, folded; behind them there may be other events at the same offsets."""
    deploys = Deploys()
    deploys.bench.log.ids[TOPIC] = "one"
    deploys.start("a", "projector")
    deploys.fold(10)
    return deploys


def made_again(shop: Deploys, count: int = 20) -> None:
    """The topic is another one, which is longer: offsets alone do not show it."""
    shop.stop("projector")
    shop.bench.log.topics[TOPIC] = [[] for _ in shop.bench.log.topics[TOPIC]]
    shop.bench.log.ids[TOPIC] = "two"
    shop.written = 0
    shop.write(count)


def stopped(shop: Deploys) -> list[str]:
    return [details["why"] for details in shop.bench.reports.of("view stopped")]


def test_a_projector_of_another_topic_stops_until_a_rebuild(shop: Deploys) -> None:
    made_again(shop)
    before = shop.live()
    shop.join("a", "projector")
    assert shop.live() == before
    (why,) = stopped(shop)
    with pytest.raises(ConfigurationError, match=SENTENCE):
        raise ConfigurationError(why)
    result = shop.rebuild("a")
    assert (result.swapped, "was folded from other topics" in result.why) == (True, True)
    shop.fold(5)
    assert shop.live() == shop.whole("a")
    with pytest.raises(ConfigurationError, match=SENTENCE):
        shop.promote("a", "kept")


def test_twin_without_ids_a_projector_folds_the_other_topic_silently(shop: Deploys) -> None:
    live = replace(shop.generation(Phase.LIVE), ids={})
    change(shop.store, "spelled", lambda registry: registry.with_generation(live))
    made_again(shop)
    shop.join("a", "projector")
    assert stopped(shop) == []
    assert shop.rows(live) == shop.whole("a"), "ten of the one and ten of the other"
    assert shop.generation(Phase.LIVE).ids == {TOPIC: "two"}


def test_a_generation_of_an_older_version_gets_the_ids_of_its_topics(shop: Deploys) -> None:
    live = replace(shop.generation(Phase.LIVE), ids={})
    change(shop.store, "spelled", lambda registry: registry.with_generation(live))
    shop.stop("projector")
    shop.join("a", "projector")
    assert shop.generation(Phase.LIVE).ids == {TOPIC: "one"}


def test_a_running_projector_notices_another_topic(shop: Deploys) -> None:
    shop.bench.log.ids[TOPIC] = "two"
    shop.projectors["projector"]._lifecycles["spelled"]._ids._due = float("-inf")
    shop.settle()
    assert shop.projectors["projector"].writers() == []
    assert len(stopped(shop)) == 1


def test_status_names_a_view_of_another_topic(shop: Deploys) -> None:
    made_again(shop)
    survey = Survey(None, None)
    survey._ids = dict(shop.bench.log.ids)
    assert len(list(survey._view(view_of("a"), shop.store, ClusterState("", "")))) == 1
    (problem,) = survey.problems
    with pytest.raises(ConfigurationError, match=SENTENCE):
        raise ConfigurationError(problem)


def test_verify_and_promote_refuse_a_view_of_another_topic(shop: Deploys) -> None:
    shop.rebuild("a", hold=True)
    made_again(shop)
    shop.assert_refused(SENTENCE)


def test_a_rebuild_does_not_continue_a_generation_of_another_topic(shop: Deploys) -> None:
    held = shop.rebuild("a", hold=True).generation
    begun = shop.store.registry("spelled").generations[held].in_phase(Phase.SEALED)
    change(shop.store, "spelled", lambda registry: registry.with_generation(begun))
    made_again(shop)
    assert shop.rebuild("a").generation != held
    assert shop.live() == shop.whole("a")
    assert held not in shop.store.registry("spelled").generations


class Silent:
    """A log that answers only while it is asked to."""

    def __init__(self) -> None:
        self.answers, self.asked = True, 0

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        self.asked += 1
        if not self.answers:
            raise InfrastructureError("no broker answers")
        return dict.fromkeys(topics, "one")


def test_while_the_log_does_not_answer_the_last_known_ids_count() -> None:
    log = Silent()
    ids = Identities(log)
    assert ids.of([TOPIC]) == {TOPIC: "one"}
    log.answers, ids._due = False, float("-inf")
    assert [ids.of([TOPIC]) for _ in range(3)] == [{TOPIC: "one"}] * 3
    assert log.asked == 2, "a question may take seconds then"
    with pytest.raises(InfrastructureError):
        ids.of([TOPIC, "others.events"])
