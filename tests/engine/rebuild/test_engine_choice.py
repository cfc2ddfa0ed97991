"""Where a rebuild runs, and what is said of it before it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leftfold.engine.rebuild.planner import (
    FOLD_RATE,
    MOST_SORTED,
    SORT_RATE,
    START_SECONDS,
    RebuildPlan,
    choose_engine,
    joint_plan,
)
from leftfold.model.position import Position
from leftfold.ports.bulk import OffsetRange

TOPIC = "carts.events"


def plan_of(events: int, *, view: str = "v", stream_keyed: bool = False, cores: int = 2) -> RebuildPlan:
    """A plan of two partitions, each a task of its own."""
    tasks = tuple((OffsetRange(TOPIC, partition, 0, events // 2),) for partition in range(2))
    return RebuildPlan(view, stream_keyed, {TOPIC: 2}, Position(), tasks, 2, cores)


@pytest.mark.parametrize("stream_keyed", [True, False])
@pytest.mark.parametrize("cores", [1, 2, 64])
def test_a_log_that_is_folded_before_spark_has_started_is_folded_in_this_process(
    stream_keyed: bool, cores: int
) -> None:
    events = int(START_SECONDS * (FOLD_RATE if stream_keyed else SORT_RATE))
    assert not choose_engine([plan_of(events, stream_keyed=stream_keyed, cores=cores)]).spark


def test_half_a_million_sorted_events_are_folded_in_this_process() -> None:
    assert str(choose_engine([plan_of(500_000)])) == "in this process: 9 s expected, and 13 s with Spark"


@pytest.mark.parametrize("stream_keyed", [True, False])
def test_a_log_that_takes_longer_is_folded_on_spark_if_that_has_several_cores(stream_keyed: bool) -> None:
    large = plan_of(1_900_000, stream_keyed=stream_keyed)
    assert choose_engine([large]).spark
    assert not choose_engine([replace(large, cores=1)]).spark


def test_all_views_of_a_rebuild_count() -> None:
    one = plan_of(600_000)
    assert not choose_engine([one]).spark
    assert choose_engine([one, one]).spark


def test_more_than_fits_into_memory_is_sorted_on_spark_on_one_core_too() -> None:
    found = choose_engine([plan_of(MOST_SORTED + 2, cores=1)])
    assert (found.spark, found.why) == (
        True,
        "2,000,002 events are to be sorted, and this process sorts 2,000,000 at most",
    )
    assert not choose_engine([plan_of(MOST_SORTED + 2, stream_keyed=True, cores=1)]).spark


def test_what_spark_computes_is_computed_on_spark() -> None:
    computed = replace(plan_of(2, view="sums"), folded=False)
    assert str(choose_engine([plan_of(2), computed])) == "on Spark: view sums is computed by Spark"


def test_the_time_of_one_pass_is_that_of_all_its_views_and_of_one_start() -> None:
    one, other = plan_of(600_000, view="one"), plan_of(600_000, view="other", stream_keyed=True)
    told = joint_plan([one, other])
    seconds = START_SECONDS + one.work + other.work
    assert f"  expected {seconds:.0f} s, " in told
    assert told.startswith(f"rebuild one, other from {TOPIC} (2 partitions)\n")
    assert "  other    each partition folded in place into 2 buckets\n" in told
    here = joint_plan([one.in_process, other.in_process])
    assert f"  expected {2 * (one.work + other.work):.0f} s, " in here, "in one process there is no start"


def test_what_this_process_sorts_it_holds_in_memory() -> None:
    sorted_, folded = plan_of(1_000_000), plan_of(1_000_000, stream_keyed=True)
    assert sorted_.in_process.memory == plan_of(2).in_process.memory + 439
    assert sorted_.memory == plan_of(2).memory, "Spark spills to disk"
    assert folded.in_process.memory * 2 == folded.memory


def test_the_plan_of_one_view_says_how_it_is_folded() -> None:
    assert "  tasks    2 on 2 cores, sorted by key, then folded into 2 buckets\n" in str(plan_of(10))
    assert "  tasks    2, one by one, sorted by key" in str(plan_of(10).in_process)
