"""Several projectors share the buckets of a view: each bucket has one, and the rows are the log's."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold.engine.views.projector import Projector, shares_of
from leftfold.model import keys as names
from leftfold.ports.flush import Generation
from leftfold.testing import fold
from tests.domains.shop import Added, open_baskets
from tests.engine.folding import TOPIC, VIEWS, FoldBench
from tests.engine.views.test_tail import histories

members = st.lists(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=1, max_size=9, unique=True)
generations = st.builds(
    lambda buckets, keyed: Generation("v", "1-a", "h", keyed, buckets, {TOPIC: buckets}),
    st.integers(1, 64),
    st.booleans(),
)


@given(members, generations)
def test_every_bucket_has_one_owner_and_the_shares_are_even(names: list[str], generation: Generation) -> None:
    shares = shares_of(names, generation)
    owned = Counter(bucket for share in shares.values() for bucket in share)
    assert owned == Counter(range(generation.buckets))
    assert max(map(len, shares.values())) <= -(-generation.buckets // len(names))


@given(members, generations)
def test_who_looks_makes_no_difference(names: list[str], generation: Generation) -> None:
    assert shares_of(names, generation) == shares_of(sorted(names), generation)


def test_few_buckets_move_when_a_tail_dies() -> None:
    generation = Generation("v", "1-a", "h", False, 64, {TOPIC: 4})
    before = shares_of(["a", "b", "c", "d"], generation)
    after = shares_of(["a", "b", "c"], generation)
    stayed = sum(len(before[name] & after[name]) for name in "abc")
    assert stayed >= 40, "three quarters of them need not move, and chance alone would keep sixteen"


@settings(max_examples=25)
@given(histories, st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_tails_that_take_turns_fold_as_memory_does(history: list[tuple[object, bool]], turns: list[int]) -> None:
    bench = FoldBench()
    tails = [bench.tail(member=f"tail {number}", lease=60.0) for number in range(3)]
    for (event, _), turn in zip(history, turns * len(history), strict=False):
        bench.write(event)  # type: ignore[arg-type]  # the strategy makes events
        tails[turn].step(0.0)
    settle_all(bench, tails)
    for view in VIEWS:
        assert bench.rows(view) == fold(view, *(event for event, _ in history))  # type: ignore[arg-type]
        assert sorted(b for tail in tails for b in buckets(tail, view.name)) == sorted(range(bench.live(view).buckets))


def test_a_silent_tail_is_replaced_when_its_lease_is_over_and_its_late_flush_writes_nothing() -> None:
    bench = FoldBench(open_baskets)
    first, second = bench.tail(member="first", lease=60.0), bench.tail(member="second", lease=60.0)
    settle_all(bench, [first, second])
    assert len(buckets(second, "open_baskets")) == 2
    bench.write(Added(basket_id="b", product="p", price=Decimal(1)))
    bench.store._members[names.tails("open_baskets", open_baskets.hash)]["first"] = 0.0
    bench.until(second, lambda: len(buckets(second, "open_baskets")) == 4)
    bench.until(second, lambda: not second.step(0.0) and second.caught_up())
    assert len(bench.rows(open_baskets)) == 1
    (zombie,) = first.writers()
    assert not zombie.fold((), zombie.position())


def test_one_that_says_farewell_is_replaced_at_once() -> None:
    bench = FoldBench(open_baskets)
    first, second = bench.tail(member="first", lease=60.0), bench.tail(member="second", lease=60.0)
    settle_all(bench, [first, second])
    first.close()
    second.step(0.0)
    assert len(buckets(second, "open_baskets")) == 4


def test_more_tails_than_buckets_stand_by() -> None:
    bench = FoldBench(open_baskets)
    tails = [bench.tail(member=f"tail {number}", lease=60.0) for number in range(6)]
    settle_all(bench, tails)
    assert sorted(len(buckets(tail, "open_baskets")) for tail in tails) == [0, 0, 1, 1, 1, 1]


def test_a_new_generation_goes_live_when_every_share_is_there() -> None:
    bench = FoldBench(open_baskets)
    for number in range(8):
        bench.write(Added(basket_id=f"b{number}", product="p", price=Decimal(1)))
    first = bench.tail(member="first", lease=60.0)
    bench.store.heartbeat([names.tails("open_baskets", open_baskets.hash)], "second", 60.0)
    for _ in range(20):
        first.step(0.0)
    assert bench.store.registry("open_baskets").live == {}, "half of it is empty"
    settle_all(bench, [first, bench.tail(member="second", lease=60.0)])
    assert len(bench.rows(open_baskets)) == 8


def buckets(tail: Projector, view: str) -> list[int]:
    """Those that a projector folds."""
    return [b for writer in tail.writers() if writer.view.name == view for b in writer.buckets]


def settle_all(bench: FoldBench, tails: list[Projector]) -> None:
    """Lets all of them work until none has anything to do."""

    def quiet() -> bool:
        return not sum(tail.step(0.0) for tail in tails) and all(tail.caught_up() for tail in tails)

    bench.until(tails[0], lambda: quiet() and quiet())
