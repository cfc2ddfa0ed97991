"""A deploy with a broken fold stops early and loses nothing; mended, it goes on."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest

from tests.cli.shell import Shell

pytestmark = [pytest.mark.servers, pytest.mark.faults]

Wait = Callable[[Callable[[], object], str], None]
ADD = '{{"cart_id": "{}", "product_id": "tea", "quantity": 1, "price": "1.00"}}'
CARTS = ("a", "b", "c", "d")
WHOLE = "    row = row or CartSummary()"
BROKEN = f'    raise ValueError("not like this")\n{WHOLE}'


class Project:
    """A project whose view `cart_summary` comes in versions, some of them with a broken fold."""

    def __init__(self, shell: Shell) -> None:
        self.shell, self._file = shell, shell.place / "shop" / "projections" / "cart_summary.py"
        self._first = self._file.read_text("utf-8")

    def deploy(self, version: int, *, broken: bool = False) -> None:
        """Puts a version of the code on the disk."""
        text = self._first.replace('"cart_summary",', f'"cart_summary", version={version},')
        self._file.write_text(text.replace(WHOLE, BROKEN) if broken else text, "utf-8")


@pytest.fixture(scope="module")
def project(up: Shell) -> Project:
    """The first version has been at work."""
    with running(up):
        deadline = time.monotonic() + 240.0
        while up("send", "AddItem", ADD.format(CARTS[0])).code:
            assert time.monotonic() < deadline, "waited in vain for the worker"
        for cart in CARTS[1:]:
            assert up("send", "AddItem", ADD.format(cart)).code == 0
        while len(rows(up)) < len(CARTS):
            assert time.monotonic() < deadline, "waited in vain for the tail"
    return Project(up)


def rows(shell: Shell) -> dict[str, int]:
    """The items of each cart that this code's readers see."""
    found = {cart: shell("get", "cart_summary", cart, "--json") for cart in CARTS}
    return {cart: told.rows()[0]["row"]["items"] for cart, told in found.items() if told.code == 0}


class running:  # noqa: N801  # reads as a verb
    """`leftfold run` with some options, until the end of the block."""

    def __init__(self, shell: Shell, *words: str) -> None:
        self._shell, self._words = shell, words

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._process = self._shell.start(["run", *self._words])
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(240.0)


def test_a_rebuild_with_a_broken_fold_stops_and_leaves_nothing(project: Project) -> None:
    project.deploy(2, broken=True)
    told = project.shell("rebuild", "cart_summary", "--engine", "local", "--max-parked", "2")
    assert told.code != 0
    assert "more than 2 keys are parked" in told.err
    assert rows(project.shell) == {}
    project.deploy(1)
    assert rows(project.shell) == dict.fromkeys(CARTS, 1), "the version before is as it was"


def test_twin_without_the_bound_a_broken_fold_goes_live(project: Project) -> None:
    project.deploy(3, broken=True)
    told = project.shell("rebuild", "cart_summary", "--engine", "local", "--max-parked", "100")
    assert told.code == 0, told.err
    assert "parked keys: 4" in told.out, told.out
    assert rows(project.shell) == {}


def test_a_tail_with_a_broken_fold_stops_that_view_and_goes_on_when_it_is_mended(
    project: Project, wait_until: Wait
) -> None:
    shell = project.shell
    project.deploy(4, broken=True)
    with running(shell, "--max-parked", "0"):
        # Not one may be parked: the first batch may hold any share of the events, and what it parks stays parked.
        wait_until(lambda: "more than 0 keys are parked" in shell.said(), "the view to stop")
        assert shell("send", "AddItem", ADD.format("a")).code == 0, "commands go on"
        others = shell("verify", "customer_spend")
        assert others.code == 0, others.err
    project.deploy(4)
    with running(shell, "--max-parked", "0"):
        wait_until(lambda: rows(shell).get("a") == 2, "the mended fold to catch up")
        assert rows(shell) == {"a": 2, "b": 1, "c": 1, "d": 1}
        told = shell("verify", "cart_summary")
        assert told.code == 0, told.err
