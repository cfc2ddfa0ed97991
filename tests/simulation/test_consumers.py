"""170 seeded schedules of process managers, timers and reactions keep every promise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.testing.simulation.schedules import Scenario, run, scheduled, shrink
from tests.simulation.posting import POST
from tests.simulation.trading import TRADE, UNSENT


@pytest.fixture(scope="module", autouse=True)
def _simulated() -> Iterator[None]:
    with scheduled(TRADE.app):
        yield


@pytest.mark.parametrize(
    ("scenario", "seeds"), [(TRADE, 50), (POST, 100), (UNSENT, 20)], ids=["processes", "reactions", "killed routers"]
)
def test_every_promise_is_kept(scenario: Scenario, seeds: int) -> None:
    for seed in range(seeds):
        outcome = run(scenario, seed)
        assert not outcome.wrong, str(shrink(scenario, outcome))


@pytest.mark.parametrize("scenario", [TRADE, POST], ids=["processes", "reactions"])
def test_the_same_seed_gives_the_same_run(scenario: Scenario) -> None:
    first, second = run(scenario, 7), run(scenario, 7)
    assert (first.events, first.seconds, first.wrong) == (second.events, second.seconds, second.wrong)
    assert [str(line) for line in first.trace] == [str(line) for line in second.trace]
