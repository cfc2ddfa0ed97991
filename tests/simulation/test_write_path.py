"""1,850 seeded schedules of the write path keep every promise."""

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


def _keep_every_promise(chunk: int) -> None:
    for seed in range(chunk * _CHUNK, (chunk + 1) * _CHUNK):
        outcome = run(PURSE, seed)
        assert not outcome.wrong, str(shrink(PURSE, outcome))


class TestFirstThird:
    """Each class runs in a process of its own."""

    @pytest.mark.parametrize("chunk", range(12))
    def test_every_promise_is_kept(self, chunk: int) -> None:
        _keep_every_promise(chunk)


class TestSecondThird:
    @pytest.mark.parametrize("chunk", range(12, 24))
    def test_every_promise_is_kept(self, chunk: int) -> None:
        _keep_every_promise(chunk)


class TestLastThird:
    @pytest.mark.parametrize("chunk", range(24, 37))
    def test_every_promise_is_kept(self, chunk: int) -> None:
        _keep_every_promise(chunk)
