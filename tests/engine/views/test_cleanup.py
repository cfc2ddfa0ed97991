"""Generations that end: what a swap replaced, what other code left, and what no registry lists."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from leftfold.cli.health.status import _shown
from leftfold.cli.views.drop import remove_one, remove_unlisted
from leftfold.client import Views
from leftfold.engine.views.cleanup import leftovers, orphans, remove_ended, remove_orphans, way_out
from leftfold.engine.views.generations import change, empty_marks, format_time, new_generation
from leftfold.engine.views.projector import Projector
from leftfold.errors import InfrastructureError, ViewNotBuilt
from leftfold.memory import MemoryViewStore
from leftfold.ports.flush import Generation, Phase, Registry
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.runtime.operations.survey import Survey
from leftfold.runtime.project import Usage
from leftfold.testing import fold
from tests.domains.shop import open_baskets
from tests.engine.fold_bench import TOPIC, FoldBench
from tests.engine.views.deployments import ADDITIONS, Deploys, next_version, view_of

TOPICS = {"baskets.events": 4}


@pytest.fixture
def projectors() -> tuple[FoldBench, FoldBench, Projector, Projector]:
    """Two versions of the code, both live, each with a projector at work."""
    old, new = FoldBench(open_baskets), FoldBench(next_version)
    new.log, new.store, new.views = old.log, old.store, old.views
    for event in ADDITIONS:
        old.write(event)
    first, second = (bench.projector(member=name, lease=60.0) for bench, name in ((old, "first"), (new, "second")))
    return old, new, old.settle(first), new.settle(second)


def test_the_live_generation_of_other_code_is_removed_on_request_once_its_projectors_ended(
    projectors: tuple[FoldBench, FoldBench, Projector, Projector], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, first, _ = projectors
    before = old.live(open_baskets)
    with pytest.raises(Usage, match="projectors of that are at work: first; stop them first"):
        remove_one(new.store, next_version, before.id, sure=True)
    assert leftovers(new.store, next_version) == []
    first.close()
    assert leftovers(new.store, next_version) == [before]
    assert way_out(before).endswith(f"leftfold drop open_baskets {before.id} --yes")
    with pytest.raises(
        Usage, match=f"ViewNotBuilt.*go on with {new.live(next_version).id}.*drop open_baskets {before.id} --yes"
    ):
        remove_one(new.store, next_version, before.id, sure=False)
    assert old.rows(open_baskets) == fold(open_baskets, *ADDITIONS)
    remove_one(new.store, next_version, before.id, sure=True)
    assert "is removed" in capsys.readouterr().out
    with pytest.raises(ViewNotBuilt):
        old.rows(open_baskets)
    assert new.rows(next_version) == fold(next_version, *ADDITIONS)
    assert {id_ for _, id_ in new.store.stored(["open_baskets"]).buckets} == {new.live(next_version).id}


def test_the_live_generation_of_this_code_is_never_removed(
    projectors: tuple[FoldBench, FoldBench, Projector, Projector],
) -> None:
    _, new, _, _ = projectors
    with pytest.raises(Usage, match="make another one live first: leftfold rollback open_baskets"):
        remove_one(new.store, next_version, "live", sure=True)
    assert new.rows(next_version) == fold(next_version, *ADDITIONS)


def test_orphans_are_named_and_removed_and_nothing_else_is(
    projectors: tuple[FoldBench, FoldBench, Projector, Projector], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, _, _ = projectors
    lost = unregistered_generation(new.store)
    remove_unlisted(new.store, next_version.name, sure=False)
    reported = capsys.readouterr().out
    assert f"open_baskets: {lost.id} is in no registry" in reported
    assert "remove it: leftfold drop open_baskets --orphans --yes" in reported
    assert len(new.store.stored(["open_baskets"]).buckets) == 3
    remove_unlisted(new.store, next_version.name, sure=True)
    assert f"open_baskets: {lost.id} is removed" in capsys.readouterr().out
    assert orphans(new.store, ["open_baskets"]).found == ()
    assert set(new.store.registry("open_baskets").generations) == {old.live(open_baskets).id, new.live(next_version).id}
    assert old.rows(open_baskets) == fold(open_baskets, *ADDITIONS)
    assert new.rows(next_version) == fold(next_version, *ADDITIONS)


def test_orphans_stay_while_the_view_is_rebuilt() -> None:
    store = MemoryViewStore()
    unregistered_generation(store)
    store.heartbeat(["rebuilds:open_baskets"], "elsewhere (process 7)", 60.0)
    with pytest.raises(InfrastructureError, match="being rebuilt or tidied already by elsewhere"):
        remove_orphans(store, "open_baskets")
    assert orphans(store, ["open_baskets"]).found


class _Late(MemoryViewStore):
    """A store in which a generation is registered during its removal as an orphan."""

    making: Generation | None = None
    landed = False

    def unlink(self, generation: Generation) -> None:
        """Registers it first, as `open_generation` does: on top of the registry that it saw before it wrote
        checkpoints.
        """
        if self.making is not None:
            registered = Registry().with_generation(self.making)
            self.landed = self.change_registry(generation.view, Registry(), registered)
        super().unlink(generation)


def test_an_orphan_that_is_being_removed_cannot_be_registered() -> None:
    assert not taken_too_late(removed_by=lambda store: remove_orphans(store, "open_baskets"))


def test_twin_an_orphan_that_is_removed_at_once_is_registered_without_checkpoints() -> None:
    def at_once(store: MemoryViewStore) -> None:
        for orphan in orphans(store, ["open_baskets"]).found:
            store.unlink(orphan)

    assert taken_too_late(removed_by=at_once)


def taken_too_late(*, removed_by: Callable[[MemoryViewStore], object]) -> bool:
    """Whether the registry lists a generation without checkpoints in the end."""
    store = _Late()
    store.making = unregistered_generation(store)
    removed_by(store)
    there = store.registry("open_baskets").generations.values()
    assert store.landed is bool(there)
    return any(not store.checkpoints(generation) for generation in there)


def unregistered_generation(store: MemoryViewStore) -> Generation:
    """What a process leaves that is killed before it registers a new generation."""
    made = new_generation(open_baskets, store.registry("open_baskets"), TOPICS, Phase.SEALED)
    assert store.create_marks(made, empty_marks(made))
    return made


@pytest.fixture
def shop() -> Deploys:
    """Rows of one code that were rebuilt with it, and what was replaced, for ten minutes."""
    deploys = Deploys()
    deploys.start("a", "projector")
    deploys.fold(5)
    deploys.rebuild("a")
    return deploys


def end_kept(shop: Deploys, seconds: float = -1.0) -> Generation:
    """The kept generation, which ends in so many seconds from now on."""
    kept = replace(shop.generation(Phase.KEPT), until=format_time(seconds))
    change(shop.store, "spelled", lambda registry: registry.with_generation(kept))
    return kept


def test_a_projector_follows_a_kept_generation_until_its_end_and_then_removes_it(shop: Deploys) -> None:
    shop.fold(5)
    kept = shop.generation(Phase.KEPT)
    assert shop.rows(kept) == shop.whole("a")
    end_kept(shop)
    shop.fold(5)
    assert kept.id not in shop.store.registry("spelled").generations
    assert shop.store.checkpoints(kept) == {}
    assert len(shop.projectors["projector"].writers()) == 1
    assert not [reported for reported in shop.bench.reports if reported[0] in ("generation lost", "out of step")]


def test_without_an_end_a_kept_generation_stays_as_before(shop: Deploys) -> None:
    kept = replace(shop.generation(Phase.KEPT), until="")
    change(shop.store, "spelled", lambda registry: registry.with_generation(kept))
    shop.fold(5)
    assert shop.rows(kept) == shop.whole("a")


def test_a_longer_time_is_shortened_by_no_later_rebuild_and_no_rollback(shop: Deploys) -> None:
    kept = end_kept(shop, 86_400.0)
    aged = replace(kept, since="2017-01-01T00:00:00Z")
    change(shop.store, "spelled", lambda registry: registry.with_generation(aged))
    shop.rebuild("a")
    assert shop.store.registry("spelled").generations[kept.id].until == kept.until
    shop.promote("a", kept.id)
    assert shop.generation(Phase.LIVE).id == kept.id


def test_a_generation_that_is_being_promoted_does_not_end(shop: Deploys) -> None:
    seen = end_kept(shop)
    change(shop.store, "spelled", lambda r: r.with_generation(replace(seen, until=format_time(600.0))))
    remove_ended(shop.store, seen)  # a projector that looked a moment ago
    assert len(shop.store.checkpoints(seen)) == seen.buckets
    shop.promote("a", "kept")
    remove_ended(shop.store, seen)
    live = shop.generation(Phase.LIVE)
    assert (live.id, live.until) == (seen.id, "")
    assert len(shop.store.checkpoints(live)) == live.buckets


def test_a_rollback_after_the_end_says_that_there_is_nothing_to_go_back_to(shop: Deploys) -> None:
    end_kept(shop)
    shop.settle()
    with pytest.raises(ViewNotBuilt, match="there is one after a rebuild or a promote, for as long as --keep says"):
        shop.promote("a", "kept")


def test_status_shows_the_age_and_the_end_of_a_kept_generation(shop: Deploys) -> None:
    kept = end_kept(shop, 300.0)
    row = {"kind": "view", "name": "spelled", "phase": "kept", "since": kept.since, "until": kept.until}
    shown = _shown({**row, "kept": "incremental"})
    assert str(shown["phase"]).startswith("kept for ")
    assert str(shown["phase"]).endswith("ends in 4 min")
    assert (shown["kept up"], "kept" in shown) == ("incremental", False)


def test_the_error_of_a_reader_names_the_progress_of_the_first_generation() -> None:
    shop = Deploys()
    shop.write(10)
    views = Views(shop.store)
    with pytest.raises(ViewNotBuilt, match="start a projector: leftfold run spelled"):
        views[view_of("a")].get("h1")
    shop.start("a", "projector", batch=1).step(0.0)
    with pytest.raises(
        ViewNotBuilt, match=r"is being built for this code: generation 1-\w+ holds [\d,]+ rows of the first"
    ):
        views[view_of("a")].get("h1")
    shop.settle()
    assert views[view_of("a")].get("h1") is not None


def test_status_shows_the_progress_of_the_first_generation_and_a_missing_projector() -> None:
    shop = Deploys()
    shop.write(10)
    shop.start("a", "projector", batch=1).step(0.0)

    def problem() -> str:
        survey = Survey(None, None)
        survey._ends = shop.bench.log.reader().ends([TOPIC])
        assert [row["phase"] for row in survey._view(view_of("a"), shop.store, ClusterState("", ""))] == ["sealed"]
        (one,) = survey.problems
        return one

    built = r"view spelled is being built for this code: generation 1-\w+ has folded [1-9] offsets of 10 \([1-9]0%\)"
    assert re.fullmatch(built, problem())
    shop.stop("projector")
    assert re.fullmatch(f"{built}; no projector is at work: leftfold run spelled", problem())
