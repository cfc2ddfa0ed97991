"""What nobody needs can be removed, and nothing else: generations of other code, and keys that no registry lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leftfold.cli.views.drop import remove_one, remove_unlisted
from leftfold.engine.views.cleanup import leftovers, orphans, remove_orphans, sweep, way_out
from leftfold.engine.views.generations import empty_marks, new_generation
from leftfold.engine.views.projector import Projector
from leftfold.errors import InfrastructureError, ViewNotBuilt
from leftfold.memory import MemoryViewStore
from leftfold.ports.flush import Generation, Phase, Registry
from leftfold.runtime.project import Usage
from leftfold.testing import fold
from tests.domains.shop import open_baskets
from tests.engine.folding import FoldBench
from tests.engine.views.test_two_versions import EVENTS, after

TOPICS = {"baskets.events": 4}


@pytest.fixture
def tails() -> tuple[FoldBench, FoldBench, Projector, Projector]:
    """Two versions of the code, both live, each with a projector at work."""
    old, new = FoldBench(open_baskets), FoldBench(after)
    new.log, new.store, new.views = old.log, old.store, old.views
    for event in EVENTS:
        old.write(event)
    return old, new, old.settle(old.tail(member="first")), new.settle(new.tail(member="second"))


def test_the_live_generation_of_other_code_goes_when_its_tails_are_gone_and_somebody_says_so(
    tails: tuple[FoldBench, FoldBench, Projector, Projector], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, first, _ = tails
    before = old.live(open_baskets)
    with pytest.raises(Usage, match="tails of that are at work: first; stop them first"):
        remove_one(new.store, after, before.id, sure=True)
    assert leftovers(new.store, after) == []
    first.close()
    assert leftovers(new.store, after) == [before]
    assert way_out(before).endswith(f"leftfold drop open_baskets {before.id} --yes")
    with pytest.raises(
        Usage, match=f"ViewNotBuilt.*go on with {new.live(after).id}.*drop open_baskets {before.id} --yes"
    ):
        remove_one(new.store, after, before.id, sure=False)
    assert old.rows(open_baskets) == fold(open_baskets, *EVENTS)
    remove_one(new.store, after, before.id, sure=True)
    assert "is removed" in capsys.readouterr().out
    with pytest.raises(ViewNotBuilt):
        old.rows(open_baskets)
    assert new.rows(after) == fold(after, *EVENTS)
    assert {id_ for _, id_ in new.store.stored(["open_baskets"]).buckets} == {new.live(after).id}


def test_that_of_this_code_stays(tails: tuple[FoldBench, FoldBench, Projector, Projector]) -> None:
    _, new, _, _ = tails
    with pytest.raises(Usage, match="make another one live first: leftfold rollback open_baskets"):
        remove_one(new.store, after, "live", sure=True)
    assert new.rows(after) == fold(after, *EVENTS)


def test_no_sweep_removes_what_other_code_left(tails: tuple[FoldBench, FoldBench, Projector, Projector]) -> None:
    old, new, first, _ = tails
    first.close()
    assert sweep(new.store, after, 0.0) == []
    assert old.rows(open_baskets) == fold(open_baskets, *EVENTS)


def test_orphans_are_named_and_removed_and_nothing_else_is(
    tails: tuple[FoldBench, FoldBench, Projector, Projector], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, _, _ = tails
    lost = begun(new.store)
    remove_unlisted(new.store, after.name, sure=False)
    told = capsys.readouterr().out
    assert f"open_baskets: {lost.id} is in no registry" in told
    assert "remove it: leftfold drop open_baskets --orphans --yes" in told
    assert len(new.store.stored(["open_baskets"]).buckets) == 3
    remove_unlisted(new.store, after.name, sure=True)
    assert f"open_baskets: {lost.id} is removed" in capsys.readouterr().out
    assert orphans(new.store, ["open_baskets"]).found == ()
    assert set(new.store.registry("open_baskets").generations) == {old.live(open_baskets).id, new.live(after).id}
    assert old.rows(open_baskets) == fold(open_baskets, *EVENTS)
    assert new.rows(after) == fold(after, *EVENTS)


def test_orphans_stay_while_the_view_is_rebuilt() -> None:
    store = MemoryViewStore()
    begun(store)
    store.heartbeat(["rebuilds:open_baskets"], "elsewhere (process 7)", 60.0)
    with pytest.raises(InfrastructureError, match="being rebuilt or tidied already by elsewhere"):
        remove_orphans(store, "open_baskets")
    assert orphans(store, ["open_baskets"]).found


class _Late(MemoryViewStore):
    """A store where somebody ends making a generation in the midst of its removal as an orphan."""

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


def test_who_is_about_to_register_an_orphan_finds_that_it_cannot() -> None:
    assert not taken_too_late(removed_by=lambda store: remove_orphans(store, "open_baskets"))


def test_twin_an_orphan_that_is_just_removed_is_registered_without_marks() -> None:
    def at_once(store: MemoryViewStore) -> None:
        for orphan in orphans(store, ["open_baskets"]).found:
            store.unlink(orphan)

    assert taken_too_late(removed_by=at_once)


def taken_too_late(*, removed_by: Callable[[MemoryViewStore], object]) -> bool:
    """Whether the registry lists a generation without checkpoints in the end."""
    store = _Late()
    store.making = begun(store)
    removed_by(store)
    there = store.registry("open_baskets").generations.values()
    assert store.landed is bool(there)
    return any(not store.checkpoints(generation) for generation in there)


def begun(store: MemoryViewStore) -> Generation:
    """What a process leaves that is killed before it registers a new generation."""
    made = new_generation(open_baskets, store.registry("open_baskets"), TOPICS, Phase.SEALED)
    assert store.create_marks(made, empty_marks(made))
    return made
