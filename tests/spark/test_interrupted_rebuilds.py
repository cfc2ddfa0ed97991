"""Rebuilds killed anywhere, in passes, and under constant reads, on real servers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from leftfold.client import Views
from leftfold.engine.rebuild.rebuilder import rebuild_together
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.views.cleanup import remove
from leftfold.engine.views.generations import resolve
from leftfold.errors import InfrastructureError
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.model.view import View
from leftfold.ports.flush import Phase
from leftfold.redis import RedisViewStore
from leftfold.spark.core.job import spark_pass_runner
from tests.domains.ledger import app, by_owner, by_tag, histories, stranger, summary
from tests.servers import secret_url
from tests.spark.conftest import Shop
from tests.spark.killed_rebuild import FOLD
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)


def killed(shop: Shop, view: View[Any, Any], last: int) -> subprocess.CompletedProcess[str]:
    """Runs a rebuild until its `last` write, or to its end."""
    servers = [shop.kafka.bootstrap_servers, secret_url(shop.redis)]
    words = [sys.executable, "-m", "tests.spark.killed_rebuild", *servers, view.name, str(last)]
    return subprocess.run(words, check=False, timeout=240.0, capture_output=True, text=True)


@pytest.fixture(scope="module")
def writes(shop: Shop) -> dict[str, int]:
    """How often a whole rebuild of each view writes."""
    found = {}
    for view in VIEWS:
        done = killed(shop, view, -1)
        assert done.returncode == 0, done.stderr
        found[view.name] = int(done.stdout)
        remove(shop.store, resolve(shop.store.registry(view.name), view, "held"))
    return found


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: str(view.name))
def test_killed_at_any_point_the_next_one_goes_on_and_ends_equal(
    shop: Shop, writes: dict[str, int], view: View[Any, Any], share: float
) -> None:
    before = shop.views[view].describe()
    with reading(shop, view) as troubles:
        assert killed(shop, view, max(2, int(writes[view.name] * share))).returncode == -9
        (left,) = (g for g in shop.store.registry(view.name).generations.values() if g.phase is Phase.BULK)
        assert shop.views[view].describe().generation == before.generation
        say_farewell(shop, view)
        result = shop.rebuild(view, fold=FOLD).run()
        assert (result.agreement, result.generation) == (Agreement.EQUAL, left.id)
    assert troubles == []


def test_a_killed_rebuild_keeps_others_out_until_its_lease_is_over(shop: Shop, writes: dict[str, int]) -> None:
    assert killed(shop, by_tag, writes[by_tag.name] // 2).returncode == -9
    with pytest.raises(InfrastructureError, match="view by_tag is being rebuilt already by"):
        shop.rebuild(by_tag, fold=FOLD).run()
    wait_until(
        lambda: not shop.store.heartbeat(["rebuilds:by_tag"], "", 0.0)["rebuilds:by_tag"], "its lease to be over"
    )
    assert shop.rebuild(by_tag, fold=FOLD).run().agreement is Agreement.EQUAL


def test_a_pass_on_spark_equals_the_tail_in_every_view(shop: Shop) -> None:
    before = {view.name: shop.views[view].describe() for view in VIEWS}
    rebuilds = [shop.rebuild(view) for view in VIEWS]
    results = rebuild_together(rebuilds, rebuilds[0].plan(), spark_pass_runner(shop.spark))
    for view, result in zip(VIEWS, results, strict=True):
        after = shop.views[view].describe()
        assert (result.agreement, after.generation) == (Agreement.EQUAL, result.generation)
        old = before[view.name]
        assert (after.checksum, after.rows, after.parked) == (old.checksum, old.rows, old.parked)


def test_swaps_under_constant_reads_and_writes_show_no_missing_and_no_older_row(shop: Shop) -> None:
    stop = threading.Event()

    def write() -> None:
        with KafkaClient(app.name, shop.kafka) as client:
            for seed in range(100, 10_000):
                if stop.is_set():
                    return
                client.send_many(list(histories(stranger(seed), 20)), timeout=240.0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with reading(shop, summary) as troubles, reading(shop, by_owner) as others:
            for _ in range(3):
                rebuilds = [shop.rebuild(view) for view in VIEWS]
                results = rebuild_together(rebuilds, rebuilds[0].plan(), spark_pass_runner(shop.spark))
                assert [(r.swapped, r.agreement) for r in results] == [(True, Agreement.EQUAL)] * 3, results
    finally:
        stop.set()
        writer.join()
    assert troubles == others == []


def say_farewell(shop: Shop, view: View[Any, Any]) -> None:
    """Takes the killed rebuild for dead now, and not when its lease is over."""
    group = f"rebuilds:{view.name}"
    for member in shop.store.heartbeat([group], "", 0.0)[group]:
        shop.store.heartbeat([group], member, 0.0)


@contextmanager
def reading(shop: Shop, view: View[Any, Any]) -> Iterator[list[str]]:
    """Reads a view's rows all the while; what should never be seen is in the list.

    A row that is there and may not be deleted is never missing, and no bucket's position ever goes back.
    """
    troubles: list[str] = []
    stop = threading.Event()

    def read() -> None:
        store = RedisViewStore(shop.redis)
        reader = Views(store)[view]
        keys = list(dict(reader.items())) if view is by_owner else []
        seen: dict[Any, Any] = {}
        while not stop.is_set():
            for key in keys or list(seen) or [f"l-{n}" for n in range(30)]:
                entry = reader.entry(key)
                if key in keys and entry.row is None:
                    troubles.append(f"{key} is missing")
                if key in seen and not entry.position.covers(seen[key]):
                    troubles.append(f"{key} went back from {seen[key]} to {entry.position}")
                seen[key] = entry.position
        store.close()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield troubles
    finally:
        stop.set()
        thread.join()
