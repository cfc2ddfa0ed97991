"""1,450 seeded schedules of the write path keep every promise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.testing.simulation.schedules import run, scheduled, shrink
from tests.simulation.scenarios.purse import PURSE

_CHUNK, _CHUNKS = 50, 29


@pytest.fixture(scope="module", autouse=True)
def _simulated() -> Iterator[None]:
    with scheduled(PURSE.app):
        yield


@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_every_promise_is_kept(chunk: int) -> None:
    for seed in range(chunk * _CHUNK, (chunk + 1) * _CHUNK):
        outcome = run(PURSE, seed)
        assert not outcome.wrong, str(shrink(PURSE, outcome))
