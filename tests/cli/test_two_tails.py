"""Two runs of one project share its views, and each takes over what the other leaves."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli.shell import Shell
from tests.cli.test_run_faults import TEA, Running

pytestmark = [pytest.mark.servers, pytest.mark.faults]

Wait = Callable[[Callable[[], object], str], None]


class Beside(Shell):
    """The same project, with a log of its own."""

    def __init__(self, shell: Shell, name: str) -> None:
        super().__init__(shell.place)
        self.log = Path(shell.place / f"{name}.log")


@pytest.fixture
def runs(up: Shell, wait_until: Wait) -> Iterator[tuple[Running, Running]]:
    """Two runs at work, both with a worker and a projector."""
    both = Running(Beside(up, "one")), Running(Beside(up, "two"))
    wait_until(lambda: all(run.count(" serving ") and run.count(" following ") for run in both), "both to work")
    yield both
    for run in both:
        run.process.terminate()
    for run in both:
        run.process.wait(240.0)


def test_a_tail_that_hangs_is_replaced_and_does_no_harm_when_it_wakes(
    runs: tuple[Running, Running], up: Shell, wait_until: Wait
) -> None:
    def tails() -> dict[str, object]:
        rows = up("status", "--json").rows()
        return {row["name"]: row["tails"] for row in rows if row["kind"] == "view"}

    wait_until(lambda: tails() == {"cart_summary": 2, "customer_spend": 2}, "both tails")
    keys = [f"shared-{number}" for number in range(8)]
    hanging: psutil.Process = runs[0].part("tail")
    hanging.send_signal(signal.SIGSTOP)
    try:
        for key in keys:
            assert up("send", "AddItem", TEA.format(key)).code == 0
        wait_until(lambda: all(items(up, key) == 2 for key in keys), "the other tail to fold all of them")
        wait_until(lambda: tails() == {"cart_summary": 1, "customer_spend": 1}, "one of them to be gone from the list")
    finally:
        hanging.send_signal(signal.SIGCONT)
    wait_until(lambda: tails() == {"cart_summary": 2, "customer_spend": 2}, "the tail that woke up")
    for key in keys:
        assert up("send", "AddItem", TEA.format(key)).code == 0
    wait_until(lambda: all(items(up, key) == 4 for key in keys), "both to fold on")


def items(shell: Shell, key: str) -> int:
    """How many items a cart's row counts."""
    told = shell("get", "cart_summary", key, "--json")
    return int(told.rows()[0]["row"]["items"]) if told.code == 0 else 0
