"""Planted bugs are found: each removes one mechanism, and a schedule breaks a promise that it keeps otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from leftfold.testing.simulation.schedules import run, scheduled, shrink
from tests.simulation.scenarios.planted import PLANTED, planted
from tests.simulation.scenarios.purse import FORGOTTEN
from tests.simulation.scenarios.spending import SPENDING

_FORGOTTEN = 3330
"""A coordinator forgets a transaction, and the worker that asked for it is killed in its next one."""
_QUICK = {
    "origins": range(20),
    "read is routed": range(20),
    "routed when sent": range(20),
    "uncommitted is routed": range(20),
    "interrupted router": range(20),
    "skipping router": range(20),
    "read is handled": range(10),
    "side by side": range(10),
    "answered": range(40),
    "failed is done": range(24, 60),
    "rewind": range(20, 125),
    "offsets outside": range(60, 150),
    "rotation": range(30, 60),
    "unknown is aborted": range(5),
    "interruption": range(4, 20),
    "generation": range(650, 660),
    "hanging": range(20),
    "fresh metadata": range(20),
    "read committed": range(16, 80),
    "unknown is committed": range(8, 60),
    "read your writes": range(10),
    "marks apart": range(20),
    "other code": range(10),
    "late seal": range(10),
    "bulk committed": range(28, 50),
    "flush token": range(284, 292),
    "unstable offsets": range(718, 726),
    "high watermark": range(718, 726),
    "shorter log": range(20),
    "shorter commands": range(5, 30),
    "ids of topics": range(10),
    "lost to retention": range(13, 30),
    "deadline": range(5),
    "digest": range(20),
    "any answer": range(10),
    "partition check": range(20),
    "checksum": range(5),
    "index entries": range(5),
    "long delivery": range(5),
    "leaving answers": range(5),
    "limit by time": range(48, 70),
    "noted result": range(3, 20),
    "slow restore": range(5),
    "other version": range(5),
    "replaced sender": range(5),
    "replaced outbox": range(5),
    "unnoted": range(40, 60),
    "unwatched": range(30, 60),
    "unreleased": range(210, 216),
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


@pytest.mark.parametrize(("bug", "seed"), [("read committed", 31), ("noted result", 4)])
def test_a_failing_schedule_is_shrunk_to_the_fewest_faults(bug: str, seed: int) -> None:
    scenario = PLANTED[bug].scenario
    with planted(bug):
        found = run(scenario, seed)
        shrunk = shrink(scenario, found)
        assert shrunk.wrong
        assert len(shrunk.faults) < len(found.faults)
        for fault in shrunk.faults:
            assert not run(scenario, seed, [one for one in shrunk.faults if one is not fault]).wrong


@pytest.mark.parametrize("is_awaited", [True, False], ids=["", "twin"])
def test_what_a_broker_forgot_outlives_a_worker_that_is_killed_in_its_next_transaction(is_awaited: bool) -> None:
    with nullcontext() if is_awaited else planted("unended"):
        assert (not run(FORGOTTEN, _FORGOTTEN).wrong) is is_awaited
