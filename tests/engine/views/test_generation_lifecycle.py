"""Which generation a process folds and makes live when the live one is lost, the log has gaps, or the store fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest

from leftfold.errors import InfrastructureError, LogGap
from leftfold.ports.flush import Generation, Phase
from tests.engine.views.deployments import Deploys


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    stand_in = SimpleNamespace(monotonic=clock.monotonic)
    monkeypatch.setattr("leftfold.engine.views.generation_lifecycle.time", stand_in)
    return clock


@pytest.fixture
def shop() -> Deploys:
    return Deploys.begun("projector")


def lose(shop: Deploys) -> Generation:
    """The live generation, which has just lost all it holds; the next event shows it."""
    lost = shop.generation(Phase.LIVE)
    shop.store.unlink(lost)
    shop.fold(1)
    assert lost.id not in shop.store.registry("spelled").generations
    return lost


def test_when_the_live_generation_is_lost_the_held_one_goes_live(shop: Deploys, clock: Clock) -> None:
    shop.rebuild("a")
    held = shop.rebuild("a", hold=True).generation
    shop.settle()
    assert len(shop.store.registry("spelled").generations) == 3, "one is kept"
    lose(shop)
    assert shop.generation(Phase.LIVE).id == held
    assert [details["generation"] for details in shop.bench.reports.of("generation live")][1:] == [held]
    assert shop.live() == shop.whole("a")


def test_a_previous_generation_goes_live_after_three_seconds_when_there_is_no_other(
    shop: Deploys, clock: Clock
) -> None:
    shop.rebuild("a")
    shop.settle()
    kept = shop.generation(Phase.KEPT)
    lose(shop)
    assert not shop.store.registry("spelled").live
    clock.seconds += 2.9
    shop.settle()
    assert not shop.store.registry("spelled").live
    clock.seconds += 0.1
    shop.settle()
    assert shop.generation(Phase.LIVE).id == kept.id
    assert shop.live() == shop.whole("a")


def test_a_previous_generation_of_older_code_leaves_that_to_the_newer_code(shop: Deploys, clock: Clock) -> None:
    shop.rebuild("b", hold=True)
    shop.start("b", "newer")
    shop.settle()
    shop.promote("b")
    shop.settle()
    assert (shop.generation(Phase.KEPT).fold, shop.generation(Phase.LIVE).fold) == ("a", "b")
    lose(shop)
    clock.seconds += 60.0
    shop.settle()
    assert shop.generation(Phase.LIVE).fold == "b"
    assert shop.live() == shop.whole("b")


def test_a_view_that_waits_for_a_rebuild_asks_the_brokers_every_five_seconds(shop: Deploys, clock: Clock) -> None:
    """And trouble with them does not end the process that folds other views, too."""
    asked: list[Mapping[str, int]] = []
    answers: list[Callable[[], Exception | None]] = [
        lambda: LogGap("lost"),
        lambda: InfrastructureError("no broker answers"),
        lambda: None,
    ]

    def check(topics: Mapping[str, int]) -> None:
        asked.append(topics)
        if (error := answers.pop(0)()) is not None:
            raise error

    shop.stop("projector")
    shop.store.unlink(shop.generation(Phase.LIVE))
    lifecycle = shop.lifecycle("a", check=check)
    assert lifecycle.checkpoints(shop.generation(Phase.LIVE)) is None
    for count in (1, 2):
        for _ in range(3):
            with pytest.raises(LogGap, match="lost"):
                lifecycle.look()
        assert len(asked) == count
        clock.seconds += 5.0
    assert len(lifecycle.look()) == 1


def test_a_first_look_that_fails_is_repeated(shop: Deploys, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process looks at for the first time it claims at once, also when it had to connect again."""
    started = set[str]()

    def fail(*_: object) -> bool:
        raise InfrastructureError("the store is not reachable")

    with monkeypatch.context() as patch:
        patch.setattr(shop.store, "change_registry", fail)
        with pytest.raises(InfrastructureError):
            shop.lifecycle("b", started=started).look()
    found = shop.lifecycle("b", started=started).look()
    assert [generation.folds for generation in found.values()] == [("a", "b")]
    shop.rebuild("a")
    shop.lifecycle("b", started=started).look()
    assert shop.generation(Phase.LIVE).folds == ("a",), "only the first look counts as a start"
