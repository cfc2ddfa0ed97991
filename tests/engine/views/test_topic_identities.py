"""A topic that is deleted and made again, or is in another cluster: views of the first one stop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from leftfold.engine.verify.verification import Verify
from leftfold.engine.views.generations import Identities, change
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.ports.bulk import CommittedLog
from leftfold.ports.flush import Phase
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.runtime.operations.survey import Survey
from tests.engine.fold_bench import TOPIC
from tests.engine.views.deployments import Deploys, view_of

SENTENCE = (
    rf"folded from another {TOPIC} \(its id was one, and is two\): .* build it from this one: leftfold rebuild spelled"
)


@pytest.fixture
def shop() -> Deploys:
    """Ten events of a topic with an id, folded; behind them there may be other events at the same offsets."""
    deploys = Deploys()
    deploys.bench.log.ids[TOPIC] = "one"
    deploys.start("a", "tail")
    deploys.fold(10)
    return deploys


def made_again(shop: Deploys, count: int = 20) -> None:
    """The topic is another one, which is longer: offsets alone do not show it."""
    shop.stop("tail")
    shop.bench.log.topics[TOPIC] = [[] for _ in shop.bench.log.topics[TOPIC]]
    shop.bench.log.ids[TOPIC] = "two"
    shop.written = 0
    shop.write(count)


def stopped(shop: Deploys) -> list[str]:
    return [details["why"] for what, details in shop.bench.reports if what == "view stopped"]


def test_a_projector_of_another_topic_stops_until_a_rebuild(shop: Deploys) -> None:
    made_again(shop)
    before = shop.live()
    shop.join("a", "tail")
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
    shop.join("a", "tail")
    assert stopped(shop) == []
    assert shop.rows(live) == shop.whole("a"), "ten of the one and ten of the other"
    assert shop.generation(Phase.LIVE).ids == {TOPIC: "two"}


def test_a_generation_of_an_older_version_gets_the_ids_of_its_topics(shop: Deploys) -> None:
    live = replace(shop.generation(Phase.LIVE), ids={})
    change(shop.store, "spelled", lambda registry: registry.with_generation(live))
    shop.stop("tail")
    shop.join("a", "tail")
    assert shop.generation(Phase.LIVE).ids == {TOPIC: "one"}


def test_a_running_projector_notices_another_topic(shop: Deploys) -> None:
    shop.bench.log.ids[TOPIC] = "two"
    shop.tails["tail"]._ids._due = float("-inf")
    shop.settle()
    assert shop.tails["tail"].writers() == []
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
    verify = Verify(
        view_of("a"), shop.store, open_log=lambda: CommittedLog(shop.bench.log.reader()), open_store=lambda: shop.store
    )
    for work in (lambda: verify.run_named("live"), lambda: shop.promote("a")):
        with pytest.raises(ConfigurationError, match=SENTENCE) as refused:
            work()
        assert refused.value.exit_code == 78


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
