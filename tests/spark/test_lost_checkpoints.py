"""Checkpoints of query views that lost their newest files: computed again or anew, and never wrong."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from leftfold.engine.rebuild.result import Agreement
from tests.spark.conftest import Shop
from tests.spark.queries import owner_sums
from tests.spark.query_streams import Streaming, newest, wait_committed
from tests.spark.test_streams import _nothing_left, agreement, caught_up, move, streaming  # noqa: F401  # a fixture
from tests.spark.trusting_stream import Trusting
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]


def drop(file: Path) -> None:
    """Removes a file and Hadoop's checksum of it."""
    file.unlink()
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(("lost", "goes_on"), [(1, True), (2, False)])
def test_lost_commits_are_replayed_or_computed_anew(shop: Shop, tmp_path: Path, lost: int, goes_on: bool) -> None:
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        for amount in ("1.00", "2.00", "4.00"):
            caught_up(shop, move(shop, f"lost {lost}", amount))
        wait_committed(shop, tmp_path)
    for file in newest(shop, tmp_path, "commits")[:lost]:
        drop(file)
    position = move(shop, f"lost {lost}", "8.00")
    with streaming(shop, tmp_path) as again:
        caught_up(shop, position)
        again.wait_heard("stream continues" if goes_on else "computed from the start")
    row = shop.views[owner_sums].get(f"lost {lost}")
    assert row is not None
    assert (row.moves, row.total) == (4, Decimal("15.00"))
    assert agreement(shop) is Agreement.EQUAL


@pytest.mark.parametrize(
    ("kind", "expected"), [(Streaming, Agreement.EQUAL), (Trusting, Agreement.DIFFERENT)], ids=["marks", "twin"]
)
def test_a_checkpoint_that_lost_its_newest_batch_is_noticed_and_only_the_marks_can_tell(
    shop: Shop, tmp_path: Path, kind: Any, expected: Agreement
) -> None:
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        for amount in ("1.00", "2.00", "4.00"):
            caught_up(shop, move(shop, "gone", amount))
        wait_committed(shop, tmp_path)
    planned = newest(shop, tmp_path, "offsets")[0]
    for file in (newest(shop, tmp_path, "commits")[0], planned):
        drop(file)
    # Spark plans a batch of the same number again, now with this event in it; by the checkpoints it is written already.
    shop.wait_stable(move(shop, "gone", "8.00"))
    with streaming(shop, tmp_path, kind=kind) as again:
        wait_until(
            lambda: again.heard("generation live") or any(tmp_path.glob(f"*/*/*/commits/{planned.name}")),
            f"a new generation, or batch {planned.name} anew",
        )
        caught_up(shop, move(shop, "another", "1.00"))
        assert again.heard("computed from the start" if kind is Streaming else "stream continues")
        assert agreement(shop) is expected
