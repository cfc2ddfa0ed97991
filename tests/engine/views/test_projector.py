"""Projectors fold the log into every generation of their code, alone and sharing buckets, in decisions."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold import Position
from leftfold.engine.views.projector import Projector, shares_of
from leftfold.errors import InfrastructureError
from leftfold.model import keys
from leftfold.ports.flush import Generation, Phase
from leftfold.ports.protocols import LogReader, RawRecord
from leftfold.testing import fold
from tests.domains.shop import Added, BasketEvent, Opened, Summary, household_spend, open_baskets
from tests.engine.fold_bench import TOPIC, VIEWS, FoldBench, checksum, out
from tests.engine.views.deployments import ADDITIONS, next_version

ONE = Decimal(1)
OPENED, ADDED = Opened(basket_id="b", household="h"), Added(basket_id="b", product="p", price=ONE)
letters = st.sampled_from("abcd")
amounts = st.integers(1, 20)
events = st.one_of(
    st.builds(lambda b, h: Opened(basket_id=b, household=h), letters, letters),
    st.builds(lambda b, p, n: Added(basket_id=b, product=p, price=Decimal(n)), letters, letters, amounts),
    st.builds(lambda b, h, lines: out(b, h, **lines), letters, letters, st.dictionaries(letters, amounts, max_size=3)),
)
histories = st.lists(st.tuples(events, st.booleans()), max_size=25)


@settings(max_examples=25)
@given(histories, st.integers(1, 5))
def test_a_projector_folds_as_memory_does_whatever_the_batches(
    history: list[tuple[BasketEvent, bool]], batch: int
) -> None:
    bench = FoldBench()
    projector = bench.settle(bench.projector(batch=batch))
    for event, pause in history:
        bench.write(event)
        if pause:
            bench.settle(projector)
    bench.settle(projector)
    for view in VIEWS:
        assert bench.rows(view) == fold(view, *(event for event, _ in history))


@settings(max_examples=12)
@given(histories)
def test_a_checksum_depends_on_the_rows_and_not_on_their_history(history: list[tuple[BasketEvent, bool]]) -> None:
    one, other = FoldBench(), FoldBench()
    projector = one.settle()
    for event, _ in history:
        one.fold(projector, event)
        other.write(event)
    other.settle()
    for view in VIEWS:
        a, b = one.views[view].describe(), other.views[view].describe()
        assert (a.checksum, a.rows) == (b.checksum, b.rows) == (a.checksum, len(one.rows(view)))
        assert (int(a.checksum, 16) == 0) == (not one.rows(view))


@pytest.fixture
def bench() -> FoldBench:
    return FoldBench()


def test_a_stream_keyed_row_carries_the_version_of_its_stream(bench: FoldBench) -> None:
    bench.fold(None, OPENED, ADDED)
    assert bench.views[open_baskets].entry("b").version == 2
    assert bench.views[household_spend].entry("h").version is None


def test_every_checkpoint_moves_with_each_flush(bench: FoldBench) -> None:
    projector = bench.settle()
    before = bench.store.checkpoints(bench.live(household_spend))
    (record,) = bench.write(out("b", "h", p=1))
    bench.settle(projector)
    after = bench.store.checkpoints(bench.live(household_spend))
    assert {m.position.next_offset(TOPIC, record.partition) for m in after.values()} == {record.offset + 1}
    assert all(after[bucket].token != before[bucket].token for bucket in after)
    behind = Position.at(TOPIC, record.partition, record.offset + 1)
    assert bench.views[household_spend].get("absent", after=behind, timeout=0.0) is None


def test_a_bucket_of_a_stream_keyed_view_speaks_of_its_own_partition_only(bench: FoldBench) -> None:
    bench.fold(None, OPENED)
    for bucket, checkpoint in bench.store.checkpoints(bench.live(open_baskets)).items():
        assert set(checkpoint.position.offsets.get(TOPIC, {})) <= {bucket}


def test_no_flush_falls_inside_a_decision(bench: FoldBench) -> None:
    projector = bench.settle(bench.projector(batch=1))
    bench.write(OPENED, ADDED, ADDED)
    totals = set()
    for _ in range(6):
        projector.step(0.0)
        row = bench.views[open_baskets].get("b")
        totals.add(None if row is None else row.lines)
    assert totals == {None, 2}


def test_half_a_decision_waits_for_its_other_half(bench: FoldBench) -> None:
    projector = bench.settle()
    (first,) = bench.write(OPENED, ce_decision=b"1/2")
    for _ in range(5):
        projector.step(0.0)
    assert bench.rows(open_baskets) == {}
    checkpoints = bench.store.checkpoints(bench.live(open_baskets))
    assert checkpoints[first.partition].position.next_offset(TOPIC, first.partition) <= first.offset
    bench.fold(projector, ADDED, ce_decision=b"2/2")
    assert bench.rows(open_baskets) == {"b": Summary(1, ONE)}


def test_a_broken_event_inside_a_decision_does_not_cut_it(bench: FoldBench) -> None:
    projector = bench.settle()
    bench.write(OPENED, ce_decision=b"1/3")
    bench.write(ADDED, ce_decision=b"2/3", ce_type=b"baskets.Added.v9")
    for _ in range(5):
        projector.step(0.0)
    assert bench.rows(open_baskets) == {}
    assert not bench.views[open_baskets].describe().parked
    bench.fold(projector, ADDED, ce_decision=b"3/3")
    assert bench.rows(open_baskets) == {"b": Summary(0, Decimal(0))}
    assert bench.views[open_baskets].describe().parked["b"].waiting == 2


def test_a_new_generation_goes_live_once_it_has_passed_the_ends_at_its_start() -> None:
    bench = FoldBench(household_spend)
    for number in range(30):
        bench.write(out(f"b{number}", "h", p=1))
    projector = bench.projector(batch=1)
    projector.step(0.0)
    (generation,) = bench.store.registry("household_spend").generations.values()
    assert generation.phase is Phase.SEALED
    assert bench.store.registry("household_spend").live == {}
    bench.settle(projector)
    assert bench.live(household_spend).phase is Phase.LIVE
    assert [what for what, _ in bench.reports] == ["generation begun", "generation live"]


def test_checksums_are_kept_per_bucket_and_add_up(bench: FoldBench) -> None:
    for number in range(20):
        bench.write(out(f"b{number}", f"h{number}", p=1))
    bench.settle()
    checkpoints = bench.store.checkpoints(bench.live(household_spend))
    assert f"{checksum(list(checkpoints.values())):032x}" == bench.views[household_spend].describe().checksum
    assert sum(checkpoint.rows for checkpoint in checkpoints.values()) == 20
    assert {checkpoint.time for checkpoint in checkpoints.values()} == {"", "2026-01-01T00:00:00Z"}


member_lists = st.lists(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=1, max_size=9, unique=True)
generations = st.builds(
    lambda buckets, keyed: Generation("v", "1-a", "h", keyed, buckets, {TOPIC: buckets}),
    st.integers(1, 64),
    st.booleans(),
)


@given(member_lists, generations)
def test_every_bucket_has_one_owner_and_the_shares_are_even(members: list[str], generation: Generation) -> None:
    shares = shares_of(members, generation)
    owned = Counter(bucket for share in shares.values() for bucket in share)
    assert owned == Counter(range(generation.buckets))
    assert max(map(len, shares.values())) <= -(-generation.buckets // len(members))


@given(member_lists, generations)
def test_every_member_computes_the_same_shares(members: list[str], generation: Generation) -> None:
    assert shares_of(members, generation) == shares_of(sorted(members), generation)


def test_few_buckets_move_when_a_projector_dies() -> None:
    generation = Generation("v", "1-a", "h", False, 64, {TOPIC: 4})
    before = shares_of(["a", "b", "c", "d"], generation)
    after = shares_of(["a", "b", "c"], generation)
    stayed = sum(len(before[name] & after[name]) for name in "abc")
    assert stayed >= 40, "three quarters of them need not move, and chance alone would keep sixteen"


@settings(max_examples=25)
@given(histories, st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_projectors_that_take_turns_fold_as_memory_does(history: list[tuple[object, bool]], turns: list[int]) -> None:
    bench = FoldBench()
    projectors = [bench.projector(member=f"projector {number}", lease=60.0) for number in range(3)]
    for (event, _), turn in zip(history, turns * len(history), strict=False):
        bench.write(event)  # type: ignore[arg-type]  # the strategy makes events
        projectors[turn].step(0.0)
    settle_all(bench, projectors)
    for view in VIEWS:
        assert bench.rows(view) == fold(view, *(event for event, _ in history))  # type: ignore[arg-type]
        assert sorted(b for projector in projectors for b in buckets(projector, view.name)) == sorted(
            range(bench.live(view).buckets)
        )


def test_a_projector_whose_lease_expires_is_replaced_and_its_late_flush_writes_nothing() -> None:
    bench = FoldBench(open_baskets)
    first, second = bench.projector(member="first", lease=60.0), bench.projector(member="second", lease=60.0)
    settle_all(bench, [first, second])
    assert len(buckets(second, "open_baskets")) == 2
    bench.write(Added(basket_id="b", product="p", price=Decimal(1)))
    bench.store._members[keys.projectors("open_baskets", open_baskets.hash)]["first"] = 0.0
    bench.until(second, lambda: len(buckets(second, "open_baskets")) == 4)
    bench.until(second, lambda: not second.step(0.0) and second.caught_up())
    assert len(bench.rows(open_baskets)) == 1
    (zombie,) = first.writers()
    assert not zombie.fold((), zombie.position())


def test_a_projector_that_ends_in_order_is_replaced_at_once() -> None:
    bench = FoldBench(open_baskets)
    first, second = bench.projector(member="first", lease=60.0), bench.projector(member="second", lease=60.0)
    settle_all(bench, [first, second])
    first.close()
    second.step(0.0)
    assert len(buckets(second, "open_baskets")) == 4


def test_projectors_beyond_the_number_of_buckets_stand_by() -> None:
    bench = FoldBench(open_baskets)
    projectors = [bench.projector(member=f"projector {number}", lease=60.0) for number in range(6)]
    settle_all(bench, projectors)
    assert sorted(len(buckets(projector, "open_baskets")) for projector in projectors) == [0, 0, 1, 1, 1, 1]


def test_a_new_generation_goes_live_when_every_share_is_there() -> None:
    bench = FoldBench(open_baskets)
    for number in range(8):
        bench.write(Added(basket_id=f"b{number}", product="p", price=Decimal(1)))
    first = bench.projector(member="first", lease=60.0)
    bench.store.heartbeat([keys.projectors("open_baskets", open_baskets.hash)], "second", 60.0)
    for _ in range(20):
        first.step(0.0)
    assert bench.store.registry("open_baskets").live == {}, "half of it is empty"
    settle_all(bench, [first, bench.projector(member="second", lease=60.0)])
    assert len(bench.rows(open_baskets)) == 8


def buckets(projector: Projector, view: str) -> list[int]:
    """Those that a projector folds."""
    return [b for writer in projector.writers() if writer.view.name == view for b in writer.buckets]


def settle_all(bench: FoldBench, projectors: list[Projector]) -> None:
    """Lets all of them work until none has anything to do."""

    def quiet() -> bool:
        return not sum(projector.step(0.0) for projector in projectors) and all(
            projector.caught_up() for projector in projectors
        )

    bench.until(projectors[0], lambda: quiet() and quiet())


def test_each_version_folds_every_bucket_of_its_own_generation_beside_the_other() -> None:
    assert rolled_out() == []


def test_twin_projectors_of_both_versions_in_one_group_leave_half_of_the_buckets_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "projectors", lambda view, hash_: f"tails:{view}")
    assert rolled_out() == ["version 1", "version 2"]


def test_twin_projectors_that_follow_generations_of_other_code_spoil_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("generation_lifecycle", "generations"):
        monkeypatch.setattr(
            f"leftfold.engine.views.{module}.followed", lambda registry, view, fold="": registry.generations
        )
    assert rolled_out() == ["version 1", "version 2"]


def rolled_out() -> list[str]:
    """The versions whose rows are not the log's after both have worked side by side."""
    old, new = FoldBench(open_baskets), FoldBench(next_version)
    new.log, new.store, new.views = old.log, old.store, old.views
    first, second = old.projector(member="first", lease=60.0), new.projector(member="second", lease=60.0)
    old.settle(first)
    for event in ADDITIONS:
        old.write(event)
        step_by_turns([first, second], 3)
    step_by_turns([first, second], 20)
    views = {"version 1": open_baskets, "version 2": next_version}
    registry = old.store.registry("open_baskets")
    return [
        name
        for name, view in views.items()
        if registry.live_of(view.hash) is None or old.rows(view) != fold(view, *ADDITIONS)
    ]


def step_by_turns(projectors: list[Projector], count: int) -> None:
    """Lets each work so often, by turns."""
    for _ in range(count):
        for projector in projectors:
            projector.step(0.0)


BACKLOG = 1_500


class Troubled:
    """A reader that fails once, at its third poll."""

    def __init__(self, reader: LogReader) -> None:
        self._reader, self.polls = reader, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def poll(self, limit: int, timeout: float) -> list[RawRecord]:
        self.polls += 1
        if self.polls == 3:
            raise InfrastructureError("the log is not reachable")
        return self._reader.poll(limit, timeout)


def follow(projector: Projector) -> None:
    for _ in range(20):
        projector.step(0.0)


def test_events_read_before_a_failed_poll_are_folded_once() -> None:
    bench = FoldBench(household_spend)
    for number in range(BACKLOG):
        bench.write(out(f"b{number}", f"h{number % 7}", p=1))
    readers: list[Troubled] = []

    def open_log() -> Any:
        readers.append(Troubled(bench.log.reader()))
        return readers[-1]

    projector = Projector([household_spend], open_log, bench.store, look=0.0)
    with pytest.raises(InfrastructureError, match="the log is not reachable"):
        follow(projector)
    assert max(reader.polls for reader in readers) == 3, "two polls of one batch had given records"
    follow(projector)
    projector.close()
    rows = dict(bench.views[household_spend].items())
    assert sum((row.total for row in rows.values()), Decimal(0)) == BACKLOG
