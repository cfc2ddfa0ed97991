"""1,000 seeded schedules of the write path keep every promise; `make simulate` runs ten times as many."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.testing.simulation.schedules import run, scheduled, shrink
from tests.simulation.purse import PURSE

_CHUNK = 50


@pytest.fixture(scope="module", autouse=True)
def _simulated() -> Iterator[None]:
    with scheduled(PURSE.app):
        yield


@pytest.mark.parametrize("chunk", range(20))
def test_every_promise_is_kept(chunk: int) -> None:
    for seed in range(chunk * _CHUNK, (chunk + 1) * _CHUNK):
        outcome = run(PURSE, seed)
        assert not outcome.wrong, str(shrink(PURSE, outcome))
