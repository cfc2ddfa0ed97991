"""The write path under seeded schedules: workers and clients keep every promise, whatever strikes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.testing.simulation.schedules import run, scheduled, shrink
from tests.simulation.planted import PLANTED, planted
from tests.simulation.purse import PURSE

_CHUNK, _CHUNKS = 50, 20
_QUICK = {"answered": 40, "fresh metadata": 10, "read committed": 150, "unknown is committed": 150}
"""Planted bugs that few schedules find, and how many that are at most; `make simulate` looks for all of them."""


@pytest.fixture(scope="module", autouse=True)
def _simulated() -> Iterator[None]:
    with scheduled(PURSE.app):
        yield


@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_every_promise_is_kept(chunk: int) -> None:
    for seed in range(chunk * _CHUNK, (chunk + 1) * _CHUNK):
        outcome = run(PURSE, seed)
        assert not outcome.wrong, str(shrink(PURSE, outcome))


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = run(PURSE, 7), run(PURSE, 7)
    assert (first.events, first.seconds, first.wrong) == (second.events, second.seconds, second.wrong)
    assert [str(line) for line in first.trace] == [str(line) for line in second.trace]


@pytest.mark.parametrize("bug", _QUICK)
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug):
        found = next((one for one in (run(PURSE, seed) for seed in range(_QUICK[bug])) if one.wrong), None)
        assert found is not None, f"{bug} was not found"
        shrunk = shrink(PURSE, found)
        assert shrunk.wrong
        for fault in shrunk.faults:
            assert not run(PURSE, found.seed, [one for one in shrunk.faults if one is not fault]).wrong
    assert bug in PLANTED
    assert not run(PURSE, found.seed).wrong, "it fails without the bug, too"
