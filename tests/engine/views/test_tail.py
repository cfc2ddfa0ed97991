from __future__ import annotations

from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold import Position
from leftfold.ports.flush import Phase
from leftfold.testing import fold
from tests.domains.shop import (
    Added,
    BasketEvent,
    Opened,
    Spend,
    Summary,
    household_spend,
    open_baskets,
    product_sales,
)
from tests.engine.folding import PARTITIONS, TOPIC, VIEWS, FoldBench, checksum, out

ONE = Decimal(1)
OPENED, ADDED = Opened(basket_id="b", household="h"), Added(basket_id="b", product="p", price=ONE)
names = st.sampled_from("abcd")
amounts = st.integers(1, 20)
events = st.one_of(
    st.builds(lambda b, h: Opened(basket_id=b, household=h), names, names),
    st.builds(lambda b, p, n: Added(basket_id=b, product=p, price=Decimal(n)), names, names, amounts),
    st.builds(lambda b, h, lines: out(b, h, **lines), names, names, st.dictionaries(names, amounts, max_size=3)),
)
histories = st.lists(st.tuples(events, st.booleans()), max_size=25)


@settings(max_examples=25)
@given(histories, st.integers(1, 5))
def test_the_tail_folds_as_memory_does_whatever_the_batches(
    history: list[tuple[BasketEvent, bool]], batch: int
) -> None:
    bench = FoldBench()
    tail = bench.settle(bench.tail(batch=batch))
    for event, pause in history:
        bench.write(event)
        if pause:
            bench.settle(tail)
    bench.settle(tail)
    for view in VIEWS:
        assert bench.rows(view) == fold(view, *(event for event, _ in history))


@settings(max_examples=12)
@given(histories)
def test_a_checksum_is_the_sum_of_its_rows_however_it_came_about(history: list[tuple[BasketEvent, bool]]) -> None:
    one, other = FoldBench(), FoldBench()
    tail = one.settle()
    for event, _ in history:
        one.write(event)
        one.settle(tail)
        other.write(event)
    other.settle()
    for view in VIEWS:
        a, b = one.views[view].describe(), other.views[view].describe()
        assert (a.checksum, a.rows) == (b.checksum, b.rows) == (a.checksum, len(one.rows(view)))
        assert (int(a.checksum, 16) == 0) == (not one.rows(view))


def test_a_row_that_evolves_to_none_is_deleted_with_its_index_entries() -> None:
    bench = FoldBench()
    bench.write(OPENED, ADDED)
    tail = bench.settle()
    assert bench.rows(open_baskets) == {"b": Summary(1, ONE)}
    bench.write(out("b", "h"))
    bench.settle(tail)
    assert bench.rows(open_baskets) == {}
    assert bench.views[open_baskets].describe().rows == 0


def test_a_stream_keyed_row_carries_the_version_of_its_stream() -> None:
    bench = FoldBench()
    bench.write(OPENED, ADDED)
    bench.settle()
    assert bench.views[open_baskets].entry("b").version == 2
    assert bench.views[household_spend].entry("h").version is None


def test_every_mark_moves_touched_or_not() -> None:
    bench = FoldBench()
    tail = bench.settle()
    before = bench.store.checkpoints(bench.live(household_spend))
    (record,) = bench.write(out("b", "h", p=1))
    bench.settle(tail)
    after = bench.store.checkpoints(bench.live(household_spend))
    assert {m.position.next_offset(TOPIC, record.partition) for m in after.values()} == {record.offset + 1}
    assert all(after[bucket].token != before[bucket].token for bucket in after)
    behind = Position.at(TOPIC, record.partition, record.offset + 1)
    assert bench.views[household_spend].get("nobody-else", after=behind, timeout=0.0) is None


def test_a_bucket_of_a_stream_keyed_view_speaks_of_its_own_partition_only() -> None:
    bench = FoldBench()
    bench.write(OPENED)
    bench.settle()
    for bucket, checkpoint in bench.store.checkpoints(bench.live(open_baskets)).items():
        assert set(checkpoint.position.offsets.get(TOPIC, {})) <= {bucket}


def test_no_flush_falls_inside_a_decision() -> None:
    bench = FoldBench()
    tail = bench.settle(bench.tail(batch=1))
    bench.write(OPENED, ADDED, ADDED)
    totals = set()
    for _ in range(6):
        tail.step(0.0)
        row = bench.views[open_baskets].get("b")
        totals.add(None if row is None else row.lines)
    assert totals == {None, 2}


def test_half_a_decision_waits_for_its_other_half() -> None:
    bench = FoldBench()
    tail = bench.settle()
    (first,) = bench.write(OPENED, ce_decision=b"1/2")
    for _ in range(5):
        tail.step(0.0)
    assert bench.rows(open_baskets) == {}
    checkpoints = bench.store.checkpoints(bench.live(open_baskets))
    assert checkpoints[first.partition].position.next_offset(TOPIC, first.partition) <= first.offset
    bench.write(ADDED, ce_decision=b"2/2")
    bench.settle(tail)
    assert bench.rows(open_baskets) == {"b": Summary(1, ONE)}


def test_a_broken_event_inside_a_decision_does_not_cut_it() -> None:
    bench = FoldBench()
    tail = bench.settle()
    bench.write(OPENED, ce_decision=b"1/3")
    bench.write(ADDED, ce_decision=b"2/3", ce_type=b"baskets.Added.v9")
    for _ in range(5):
        tail.step(0.0)
    assert bench.rows(open_baskets) == {}
    assert not bench.views[open_baskets].describe().parked
    bench.write(ADDED, ce_decision=b"3/3")
    bench.settle(tail)
    assert bench.rows(open_baskets) == {"b": Summary(0, Decimal(0))}
    assert bench.views[open_baskets].describe().parked["b"].waiting == 2


def test_a_new_tail_goes_on_where_the_marks_are() -> None:
    bench = FoldBench()
    bench.write(out("b", "h", p=1))
    bench.settle()
    bench.write(out("c", "h", p=2))
    bench.settle()
    assert bench.rows(household_spend) == {"h": Spend(Decimal(3), "base")}
    assert len(bench.store.registry("household_spend").generations) == 1


def test_a_tail_makes_a_generation_and_points_at_it_once_it_is_past_the_ends_seen_at_start() -> None:
    bench = FoldBench(household_spend)
    for number in range(30):
        bench.write(out(f"b{number}", "h", p=1))
    tail = bench.tail(batch=1)
    tail.step(0.0)
    (generation,) = bench.store.registry("household_spend").generations.values()
    assert generation.phase is Phase.SEALED
    assert bench.store.registry("household_spend").live == {}
    bench.settle(tail)
    assert bench.live(household_spend).phase is Phase.LIVE
    assert [what for what, _ in bench.reports] == ["generation begun", "generation live"]


def test_checksums_are_kept_per_bucket_and_add_up() -> None:
    bench = FoldBench()
    for number in range(20):
        bench.write(out(f"b{number}", f"h{number}", p=1))
    bench.settle()
    checkpoints = bench.store.checkpoints(bench.live(household_spend))
    assert f"{checksum(list(checkpoints.values())):032x}" == bench.views[household_spend].describe().checksum
    assert sum(checkpoint.rows for checkpoint in checkpoints.values()) == 20
    assert {checkpoint.time for checkpoint in checkpoints.values()} == {"", "2026-01-01T00:00:00Z"}


def test_all_kinds_of_view_have_the_buckets_that_their_kind_has() -> None:
    bench = FoldBench()
    bench.settle()
    assert bench.live(open_baskets).buckets == PARTITIONS
    assert bench.live(household_spend).buckets == bench.live(product_sales).buckets == 16


def test_events_of_other_classes_pass_by_however_broken_they_are() -> None:
    bench = FoldBench(household_spend)
    bench.raw(b"x", b"?", ce_type=b"baskets.Emptied.v3")
    bench.raw(b"x", b"?", ce_type=b"baskets.Emptied.v3", ce_sequence=b"?")
    bench.raw(b"\xff", None, ce_type=b"other.Thing.v1")
    bench.write(out("b", "h", p=1))
    bench.settle()
    assert bench.rows(household_spend) == {"h": Spend(ONE, "base")}
