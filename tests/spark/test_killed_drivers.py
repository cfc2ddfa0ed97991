"""SIGKILL of the driver of a rebuild on Spark: the same rebuild again ends right, and what is left over is removed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.views.cleanup import orphans, remove_orphans
from leftfold.errors import Fenced
from leftfold.model.view import View
from leftfold.ports.flush import Generation
from leftfold.ports.protocols import ViewStore
from tests.domains.ledger import by_owner, summary
from tests.servers import secret_url
from tests.spark.conftest import Shop
from tests.spark.killed_rebuild import FOLD
from tests.spark.oracle import truth
from tests.spark.test_interrupted_rebuilds import say_farewell
from tests.whole import assert_whole

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]

POINTS = {
    "before it is registered": "begins anew",
    "behind the begin": "goes on",
    "within the bulk": "goes on",
    "behind the note of a whole bucket": "goes on",
    "before the seal": "goes on",
    "behind the first seal": "begins anew",
    "behind the seal": "goes on",
    "between seal and swap": "goes on",
    "behind the swap": "was done",
    "before the old one's keys go": "was done",
}
"""Where the driver is killed, and what the same rebuild does then."""
ORPHANS = ("before it is registered", "before the old one's keys go")
CASES: list[tuple[View[Any, Any], str]] = [
    (summary if point == "behind the note of a whole bucket" else by_owner, point) for point in POINTS
]
"""Streams are folded in place, all else is sorted first: each is killed once in the bulk."""


def killed(shop: Shop, view: View[Any, Any], point: str, folder: Path) -> None:
    """Runs a rebuild on Spark up to a point."""
    servers = [shop.kafka.bootstrap_servers, secret_url(shop.redis)]
    words = [sys.executable, "-m", "tests.spark.killed_driver", *servers, view.name, point, str(folder)]
    # Spark's own processes may outlive it, and would hold a pipe open.
    with (folder / "log").open("wb") as log:
        done = subprocess.run(words, check=False, timeout=240.0, stdout=log, stderr=log)
    assert done.returncode == -signal.SIGKILL, f"it never came to {point!r}: {(folder / 'log').read_text()}"
    say_farewell(shop, view)


def stored(shop: Shop, view: View[Any, Any]) -> set[str]:
    """The generations of which there are keys, whatever the registry says."""
    return {id_ for _, id_ in shop.store.stored([view.name]).buckets}


@pytest.mark.parametrize(("view", "point"), CASES, ids=[f"{view.name} {point}" for view, point in CASES])
def test_the_same_rebuild_again_ends_right_and_nothing_stays(
    shop: Shop, view: View[Any, Any], point: str, tmp_path: Path
) -> None:
    before = shop.views[view].describe()
    kept = set(shop.store.registry(view.name).generations) - {before.generation}
    killed(shop, view, point, tmp_path)
    now, registry = shop.views[view].describe(), shop.store.registry(view.name)
    assert (now.generation == before.generation) is (POINTS[point] != "was done")
    assert_whole(shop.store, view, truth(shop, view))
    left = set(registry.generations) - {before.generation} - kept
    lost = {orphan.id for orphan in orphans(shop.store, [view.name]).found}
    assert stored(shop, view) - set(registry.generations) == lost
    assert bool(lost) is (point in ORPHANS)

    result = shop.rebuild(view, fold=FOLD).run()
    assert (result.agreement, result.swapped) == (Agreement.EQUAL, True)
    assert (result.generation in left) is (POINTS[point] == "goes on")
    assert_whole(shop.store, view, truth(shop, view))
    # What others keep stays for its own time.
    assert set(shop.store.registry(view.name).generations) == kept | {result.generation}
    assert {orphan.id for orphan in remove_orphans(shop.store, view.name)} == lost
    assert stored(shop, view) == kept | {result.generation}


def test_twin_that_believes_the_registry_instead_of_the_marks_cannot_go_on(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(shop, by_owner, "behind the seal", tmp_path)

    def as_registered(store: ViewStore, generation: Generation) -> Generation:
        return generation

    with monkeypatch.context() as careless:
        careless.setattr("leftfold.engine.rebuild.rebuilder._as_it_is", as_registered)
        with pytest.raises(Fenced, match="is sealed, not bulk"):
            shop.rebuild(by_owner, fold=FOLD).run()
    assert shop.rebuild(by_owner, fold=FOLD).run().agreement is Agreement.EQUAL
