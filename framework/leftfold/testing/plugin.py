"""The pytest plugin: the fixture `simulate`, which fails a test with the shortest schedule that breaks a guarantee."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from leftfold.model.app import App

__all__ = ["Simulate", "pytest_addoption", "simulate"]


class Simulate(Protocol):
    """The type of the fixture `simulate`."""

    def __call__(self, app: App, **options: Any) -> None:
        """Runs an App under schedules; `options` are those of `leftfold.testing.simulation.simulate`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options `--schedules` and `--schedule-seed`."""
    group = parser.getgroup("leftfold")
    group.addoption("--schedules", type=int, metavar="N", help="schedules that each simulation runs")
    group.addoption("--schedule-seed", type=int, metavar="SEED", help="the first seed of each simulation")


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Simulate:
    """Runs an App under seeded schedules with faults; a broken guarantee fails the test and prints its trace."""
    chosen = {"schedules": request.config.getoption("--schedules"), "seed": request.config.getoption("--schedule-seed")}

    def check(app: App, **options: Any) -> None:
        from leftfold.testing.simulation import simulate as run

        report = run(app, **{**options, **{name: value for name, value in chosen.items() if value is not None}})
        if report.failure is not None:
            again = f"repeat it: pytest --schedules 1 --schedule-seed {report.failure.seed}"
            pytest.fail(f"{report}\n{again}", pytrace=False)

    return check
