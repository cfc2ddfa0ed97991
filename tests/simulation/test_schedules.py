"""Seeded schedules of views (100 of the read path, 50 of a deploy) keep every promise; planted bugs are found."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from leftfold.testing.simulation.schedules import Scenario, run, scheduled, shrink
from tests.simulation.mishaps import MISHAPS
from tests.simulation.planted import PLANTED, planted
from tests.simulation.purse import PURSE, RESTARTS
from tests.simulation.spending import BESIDE, DEPLOY, SPENDING

_CHUNK, _CHUNKS_OF_VIEWS = 50, 2
_CHUNK_OF_MISHAPS = 20
_MET = (597, 1720)
"""A reader loses Redis while it begins to listen."""
_LOST = (114, 223, 258)
"""Redis loses a held generation, or its promotion: a deploy is done again."""
_HELD = 5734
"""Of restarts: a coordinator forgets events alone, and nobody hears that a request was not answered."""
_OVERTAKEN = 1984
"""A projector brings the live generation on between the last look of a rebuild and its swap."""
_QUICK = {
    "origins": 60,
    "read is routed": 20,
    "routed when sent": 20,
    "uncommitted is routed": 20,
    "interrupted router": 20,
    "skipping router": 20,
    "read is handled": 10,
    "side by side": 10,
    "answered": 40,
    "failed is done": 20,
    "rewind": 60,
    "offsets outside": 150,
    "rotation": 20,
    "unknown is aborted": 5,
    "interruption": 10,
    "hanging": 10,
    "fresh metadata": 40,
    "read committed": 150,
    "unknown is committed": 150,
    "read your writes": 10,
    "marks apart": 20,
    "other code": 10,
    "shorter log": 10,
    "shorter commands": 20,
    "ids of topics": 5,
    "lost to retention": 20,
    "deadline": 5,
    "long delivery": 5,
    "leaving answers": 5,
    "limit by time": 30,
    "noted result": 10,
    "slow restore": 5,
    "other version": 5,
    "replaced sender": 5,
    "replaced outbox": 5,
}
"""Planted bugs that few schedules find, and how many that are at most; `make simulate` looks for all of them."""


@pytest.fixture(scope="module", autouse=True)
def _simulated() -> Iterator[None]:
    with scheduled(SPENDING.app):
        yield


@pytest.mark.parametrize("chunk", range(_CHUNKS_OF_VIEWS))
def test_every_promise_of_views_is_kept(chunk: int) -> None:
    for seed in range(chunk * _CHUNK, (chunk + 1) * _CHUNK):
        outcome = run(SPENDING, seed)
        assert not outcome.wrong, str(shrink(SPENDING, outcome))


@pytest.mark.parametrize("is_level", [True, False], ids=["", "twin"])
def test_nothing_goes_live_behind_what_readers_have_seen(is_level: bool) -> None:
    with nullcontext() if is_level else planted("level"):
        assert (not run(SPENDING, _OVERTAKEN).wrong) is is_level


@pytest.mark.parametrize("seed", _MET)
def test_schedules_that_once_broke_a_promise_of_views_keep_it(seed: int) -> None:
    outcome = run(SPENDING, seed)
    assert not outcome.wrong, str(outcome)


@pytest.mark.parametrize("is_looked_for", [True, False], ids=["", "twin"])
def test_a_takeover_ends_what_holds_up_readers_alone(is_looked_for: bool) -> None:
    with planted("deaf"), nullcontext() if is_looked_for else planted("held readers"):
        assert (not run(RESTARTS, _HELD).wrong) is is_looked_for


def test_a_rolling_deploy_ends_with_the_rows_of_the_newer_code() -> None:
    for seed in (*range(_CHUNK), *_LOST):
        outcome = run(DEPLOY, seed)
        assert not outcome.wrong, str(shrink(DEPLOY, outcome))


@pytest.mark.parametrize("mishap", MISHAPS)
def test_every_promise_survives_a_mishap(mishap: str) -> None:
    for seed in range(_CHUNK_OF_MISHAPS):
        outcome = run(MISHAPS[mishap], seed)
        assert not outcome.wrong, str(shrink(MISHAPS[mishap], outcome))


def test_a_rebuild_whose_tasks_run_twice_at_once_keeps_every_promise_of_views() -> None:
    for seed in range(_CHUNK_OF_MISHAPS):
        outcome = run(BESIDE, seed)
        assert not outcome.wrong, str(shrink(BESIDE, outcome))


@pytest.mark.parametrize("scenario", [PURSE, SPENDING], ids=["write path", "read path"])
def test_the_same_seed_gives_the_same_run(scenario: Scenario) -> None:
    first, second = run(scenario, 7), run(scenario, 7)
    assert (first.events, first.seconds, first.wrong) == (second.events, second.seconds, second.wrong)
    assert [str(line) for line in first.trace] == [str(line) for line in second.trace]


def test_what_is_logged_changes_no_run() -> None:
    """A producer's log tells it that a request was not answered: whoever wants no log wants that all the same."""
    heard = run(RESTARTS, _HELD)
    logging.disable(logging.CRITICAL)
    try:
        silent = run(RESTARTS, _HELD)
    finally:
        logging.disable(logging.NOTSET)
    assert (heard.events, heard.seconds) == (silent.events, silent.seconds)


@pytest.mark.parametrize("bug", _QUICK)
def test_a_planted_bug_is_found(bug: str) -> None:
    scenario = PLANTED[bug].scenario
    with planted(bug):
        found = next((one for one in (run(scenario, seed) for seed in range(_QUICK[bug])) if one.wrong), None)
        assert found is not None, f"{bug} was not found"
        shrunk = shrink(scenario, found)
        assert shrunk.wrong
        for fault in shrunk.faults:
            assert not run(scenario, found.seed, [one for one in shrunk.faults if one is not fault]).wrong
    assert not run(scenario, found.seed).wrong, "it fails without the bug, too"
