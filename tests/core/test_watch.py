from __future__ import annotations

from decimal import Decimal

import pytest

from leftfold import ChangesNotKept
from leftfold.memory import MemoryViewStore
from leftfold.ports import ViewStore
from tests.core.folding import out
from tests.core.shop import Spend, household_spend
from tests.core.watches import Watches, bench_on


class TestWatchesInMemory(Watches):
    @pytest.fixture
    def store(self) -> ViewStore:
        return MemoryViewStore()


def test_changes_that_are_not_kept_any_more_are_told_with_the_mend() -> None:
    bench = bench_on(MemoryViewStore(history=5), household_spend)
    tail, reader = bench.settle(), bench.views[household_spend]
    start = reader.describe().position
    for number in range(12):
        bench.write(out(f"b{number}", "h", p=1))
        bench.settle(tail)
    with pytest.raises(ChangesNotKept, match=r"take describe\(\).position, then read all rows with items\(\)"):
        reader.watch(after=start)
    position, rows = reader.describe().position, dict(reader.items())
    assert rows == {"h": Spend(Decimal(12), "gold")}
    bench.write(out("more", "h", p=1))
    bench.settle(tail)
    assert [one.row for one in reader.watch(after=position, timeout=0.0)] == [Spend(Decimal(13), "gold")]
