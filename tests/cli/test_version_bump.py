"""A view's version is raised, both codes run side by side for a while, and what the old one leaves is removed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.cli.test_view_care import ADD, FOLD, SLIP, fold, items

pytestmark = [pytest.mark.servers, pytest.mark.faults]

Wait = Callable[[Callable[[], object], str], None]
CARTS = "bcdef"


def test_old_and_new_code_run_side_by_side_and_the_old_generation_goes_when_nobody_needs_it(
    up: Shell, tmp_path: Path, wait_until: Wait
) -> None:
    new = next_code(up, tmp_path)
    with running(up, "run"):
        wait_until(lambda: up("send", "AddItem", ADD.format("a", "tea", 1, "1.00")).code == 0, "the worker")
        wait_until(lambda: items(up, "cart_summary", "a") > 0, "the old tail")
        with running(new, "run", "cart_summary"):
            wait_until(lambda: items(new, "cart_summary", "a") > 0, "the new tail")
            for cart in CARTS:
                assert up("send", "AddItem", ADD.format(cart, "tea", 1, "1.00")).code == 0
            wait_until(lambda: all(items(up, "cart_summary", cart) == 1 for cart in CARTS), "the old tail")
            wait_until(lambda: all(items(new, "cart_summary", cart) == 101 for cart in CARTS), "the new tail")
            old = live_of_other_code(new)
            # Whoever stands still for three seconds is taken for gone.
            wait_until(lambda: f"drop cart_summary {old}" not in new("status").err, "the old tail to be at work")
            told = new("drop", "cart_summary", old, "--yes")
            assert (told.code, "tails of that are at work" in told.err) == (2, True), told.err
    wait_until(lambda: f"leftfold drop cart_summary {old} --yes" in new("status").err, "the old tail to be gone")
    looked = {row["about"]: row for row in new("doctor", "--json").rows()}
    assert looked["views"]["well"]
    assert f"leftfold drop cart_summary {old} --yes" in looked["views"]["message"]
    assert looked["orphans"]["well"], looked["orphans"]
    told = new("drop", "cart_summary", old)
    assert (told.code, "would get ViewNotBuilt" in told.err) == (2, True), told.err
    assert new("drop", "cart_summary", old, "--yes").code == 0
    assert items(up, "cart_summary", "b") == -1
    assert items(new, "cart_summary", "b") == 101
    assert new("drop", "cart_summary").code == 2
    assert "every generation that has keys is in its registry" in new("drop", "cart_summary", "--orphans").out


def next_code(shell: Shell, directory: Path) -> Shell:
    """The same project at the same servers with another fold and version of cart_summary."""
    place = directory / "next" / shell.place.name
    shutil.copytree(shell.place, place, ignore=shutil.ignore_patterns(".leftfold", "__pycache__"))
    (place / ".leftfold").mkdir()
    shutil.copy(shell.place / ".leftfold" / "servers.json", place / ".leftfold")
    new = Shell(place)
    fold(new, FOLD, SLIP)
    fold(new, "evolve=evolve)", "evolve=evolve, version=2)")
    return new


@contextmanager
def running(shell: Shell, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A long command, until the block ends."""
    process = shell.start(words)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(240.0)


def live_of_other_code(shell: Shell) -> str:
    """The id of the generation that other code shows its readers."""
    rows = shell("status", "--json").rows()
    (found,) = {str(row["generation"]) for row in rows if row.get("phase") == "live (other code)"}
    return found
