"""Planted bugs are found: each removes one mechanism, and a schedule breaks a promise that it keeps otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from leftfold.testing.simulation.schedules import run, scheduled, shrink
from tests.simulation.scenarios.planted import PLANTED, planted
from tests.simulation.scenarios.purse import RESTARTS
from tests.simulation.scenarios.spending import SPENDING

_HELD = 5734
"""Of restarts: a coordinator forgets events alone, and no worker learns that a request was not answered."""
_OVERTAKEN = 1984
"""A projector brings the live generation on between the last look of a rebuild and its swap."""
_QUICK = {
    "origins": range(60),
    "read is routed": range(10, 30),
    "routed when sent": range(10, 30),
    "uncommitted is routed": range(20),
    "interrupted router": range(20),
    "skipping router": range(20),
    "read is handled": range(10),
    "side by side": range(10),
    "answered": range(40),
    "failed is done": range(20),
    "rewind": range(34, 100),
    "offsets outside": range(35, 150),
    "rotation": range(12, 30),
    "unknown is aborted": range(5),
    "interruption": range(4, 20),
    "generation": range(139, 145),
    "hanging": range(6, 20),
    "fresh metadata": range(17, 40),
    "read committed": range(4, 150),
    "unknown is committed": range(9, 150),
    "read your writes": range(10),
    "marks apart": range(20),
    "other code": range(10),
    "shorter log": range(3, 20),
    "shorter commands": range(10, 30),
    "ids of topics": range(5),
    "lost to retention": range(13, 30),
    "deadline": range(5),
    "long delivery": range(5),
    "leaving answers": range(5),
    "limit by time": range(17, 40),
    "noted result": range(3, 20),
    "slow restore": range(5),
    "other version": range(5),
    "replaced sender": range(5),
    "replaced outbox": range(5),
}
"""Planted bugs that few schedules find, and where one is: some seeds before it, and more for the day it moves.

`make simulate` looks for all of them from seed 0 on.
"""


@pytest.fixture(scope="module", autouse=True)
def _simulated() -> Iterator[None]:
    with scheduled(SPENDING.app):
        yield


@pytest.mark.parametrize("bug", _QUICK)
def test_a_planted_bug_is_found(bug: str) -> None:
    scenario = PLANTED[bug].scenario
    with planted(bug):
        found = next((seed for seed in _QUICK[bug] if run(scenario, seed).wrong), None)
    assert found is not None, f"{bug} was not found"
    assert not run(scenario, found).wrong, "it fails without the bug, too"


@pytest.mark.parametrize(("bug", "seed"), [("read committed", 6), ("noted result", 4)])
def test_a_failing_schedule_is_shrunk_to_the_fewest_faults(bug: str, seed: int) -> None:
    scenario = PLANTED[bug].scenario
    with planted(bug):
        found = run(scenario, seed)
        shrunk = shrink(scenario, found)
        assert shrunk.wrong
        assert len(shrunk.faults) < len(found.faults)
        for fault in shrunk.faults:
            assert not run(scenario, seed, [one for one in shrunk.faults if one is not fault]).wrong


@pytest.mark.parametrize("is_level", [True, False], ids=["", "twin"])
def test_nothing_goes_live_behind_what_readers_have_seen(is_level: bool) -> None:
    with nullcontext() if is_level else planted("level"):
        assert (not run(SPENDING, _OVERTAKEN).wrong) is is_level


@pytest.mark.parametrize("is_looked_for", [True, False], ids=["", "twin"])
def test_a_takeover_ends_what_holds_up_readers_alone(is_looked_for: bool) -> None:
    with planted("deaf"), nullcontext() if is_looked_for else planted("held readers"):
        assert (not run(RESTARTS, _HELD).wrong) is is_looked_for
