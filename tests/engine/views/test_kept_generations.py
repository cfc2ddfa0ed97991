"""What a swap replaces is kept for its time, and then ends; what is being built says how far it is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from leftfold.cli.health.components import Freshness
from leftfold.cli.health.status import _shown
from leftfold.cli.health.survey import Survey
from leftfold.client import Views
from leftfold.engine.views.cleanup import remove_ended
from leftfold.engine.views.generations import change, format_time
from leftfold.errors import ViewNotBuilt
from leftfold.ports.flush import Generation, Phase
from tests.engine.folding import TOPIC
from tests.engine.views.deploys import Deploys, view_of


@pytest.fixture
def shop() -> Deploys:
    """Rows of one code that were rebuilt with it, and what was replaced, for ten minutes."""
    deploys = Deploys()
    deploys.start("a", "tail")
    deploys.write(5)
    deploys.settle()
    deploys.rebuild("a")
    return deploys


def over(shop: Deploys, seconds: float = -1.0) -> Generation:
    """The kept generation, which ends in so many seconds from now on."""
    kept = replace(shop.generation(Phase.KEPT), until=format_time(seconds))
    change(shop.store, "spelled", lambda registry: registry.with_generation(kept))
    return kept


def test_a_kept_generation_is_followed_until_its_time_is_over_and_then_removed_by_a_tail(shop: Deploys) -> None:
    shop.write(5)
    shop.settle()
    kept = shop.generation(Phase.KEPT)
    assert shop.rows(kept) == shop.whole("a")
    over(shop)
    shop.write(5)
    shop.settle()
    assert kept.id not in shop.store.registry("spelled").generations
    assert shop.store.checkpoints(kept) == {}
    assert len(shop.tails["tail"].writers()) == 1
    assert not [told for told in shop.bench.reports if told[0] in ("generation lost", "out of step")]


def test_without_an_end_a_kept_generation_stays_as_before(shop: Deploys) -> None:
    kept = replace(shop.generation(Phase.KEPT), until="")
    change(shop.store, "spelled", lambda registry: registry.with_generation(kept))
    shop.write(5)
    shop.settle()
    assert shop.rows(kept) == shop.whole("a")


def test_a_longer_time_is_shortened_by_no_later_rebuild_and_no_rollback(shop: Deploys) -> None:
    kept = over(shop, 86_400.0)
    aged = replace(kept, since="2017-01-01T00:00:00Z")
    change(shop.store, "spelled", lambda registry: registry.with_generation(aged))
    shop.rebuild("a")
    assert shop.store.registry("spelled").generations[kept.id].until == kept.until
    shop.promote("a", kept.id)
    assert shop.generation(Phase.LIVE).id == kept.id


def test_what_is_being_promoted_does_not_end_meanwhile(shop: Deploys) -> None:
    seen = over(shop)
    change(shop.store, "spelled", lambda r: r.with_generation(replace(seen, until=format_time(600.0))))
    remove_ended(shop.store, seen)  # a projector that looked a moment ago
    assert len(shop.store.checkpoints(seen)) == seen.buckets
    shop.promote("a", "kept")
    remove_ended(shop.store, seen)
    live = shop.generation(Phase.LIVE)
    assert (live.id, live.until) == (seen.id, "")
    assert len(shop.store.checkpoints(live)) == live.buckets


def test_a_rollback_after_the_end_says_that_there_is_nothing_to_go_back_to(shop: Deploys) -> None:
    over(shop)
    shop.settle()
    with pytest.raises(ViewNotBuilt, match="there is one after a rebuild or a promote, for as long as --keep says"):
        shop.promote("a", "kept")


def test_status_shows_its_age_and_its_end_and_how_rows_are_kept_up_under_another_word(shop: Deploys) -> None:
    kept = over(shop, 300.0)
    row = {"kind": "view", "name": "spelled", "phase": "kept", "since": kept.since, "until": kept.until}
    shown = _shown({**row, "kept": "incremental"})
    assert str(shown["phase"]).startswith("kept for ")
    assert str(shown["phase"]).endswith("ends in 4 min")
    assert (shown["kept up"], "kept" in shown) == ("incremental", False)


def test_a_reader_is_told_how_far_the_first_generation_is() -> None:
    shop = Deploys()
    shop.write(10)
    views = Views(shop.store)
    with pytest.raises(ViewNotBuilt, match="start a projector: leftfold run spelled"):
        views[view_of("a")].get("h1")
    shop.start("a", "tail", batch=1).step(0.0)
    with pytest.raises(
        ViewNotBuilt, match=r"is being built for this code: generation 1-\w+ holds [\d,]+ rows of the first"
    ):
        views[view_of("a")].get("h1")
    shop.settle()
    assert views[view_of("a")].get("h1") is not None


def test_status_says_how_far_the_first_generation_is_and_whether_a_tail_builds_it() -> None:
    shop = Deploys()
    shop.write(10)
    shop.start("a", "tail", batch=1).step(0.0)

    def problem() -> str:
        survey = Survey(None, None)
        survey._ends = shop.bench.log.reader().ends([TOPIC])
        assert [row["phase"] for row in survey._view(view_of("a"), shop.store, Freshness("", ""))] == ["sealed"]
        (one,) = survey.problems
        return one

    built = r"view spelled is being built for this code: generation 1-\w+ has folded [1-9] offsets of 10 \([1-9]0%\)"
    assert re.fullmatch(built, problem())
    shop.stop("tail")
    assert re.fullmatch(f"{built}; no tail is at work: leftfold run spelled", problem())
