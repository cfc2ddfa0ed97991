"""What a rebuild will cost, where it runs, and what is said of it before it begins."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold.engine.rebuild import planner as model
from leftfold.engine.rebuild.planner import (
    FOLD_RATE,
    MOST_SORTED,
    SORT_RATE,
    START_SECONDS,
    Hardware,
    RebuildPlan,
    Workload,
    choose_engine,
    forecast,
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
    reported = joint_plan([one, other])
    seconds = START_SECONDS + one.work + other.work
    assert f"  expected {seconds:.0f} s, " in reported
    assert reported.startswith(f"rebuild one, other from {TOPIC} (2 partitions)\n")
    assert "  other    each partition folded in place into 2 buckets\n" in reported
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


FIGURES = json.loads((Path(__file__).parents[3] / "benchmarks" / "results" / "latest.json").read_text("utf-8"))

workloads = st.builds(
    Workload,
    events=st.integers(0, 10**13),
    partitions=st.integers(1, 4096),
    stream_keyed=st.booleans(),
    buckets=st.integers(1, 1024),
    rows=st.none() | st.integers(0, 10**11),
)
hardware = st.builds(
    Hardware,
    cores=st.integers(1, 4096),
    machines=st.integers(1, 64),
    brokers=st.integers(1, 9),
    stores=st.integers(1, 9),
)


@given(workloads, hardware, st.integers(2, 1000))
def test_time_is_linear_in_events_behind_the_start(work: Workload, on: Hardware, times: int) -> None:
    work = replace(work, events=work.events * 8, rows=None)
    once = forecast(work, on).seconds - START_SECONDS
    more = forecast(replace(work, events=work.events * times), on).seconds - START_SECONDS
    assert math.isclose(more, times * once, rel_tol=1e-9, abs_tol=1e-6)


@given(workloads, hardware, st.integers(0, 10**12), st.sampled_from(["cores", "brokers", "stores"]), st.integers(1, 64))
def test_more_events_never_take_less_and_more_hardware_never_more(
    work: Workload, on: Hardware, more: int, what: str, of_it: int
) -> None:
    now = forecast(work, on)
    assert forecast(replace(work, events=work.events + more), on).seconds >= now.seconds
    assert forecast(work, replace(on, **{what: getattr(on, what) + of_it})).seconds <= now.seconds
    wider = replace(work, partitions=work.partitions + of_it, buckets=work.buckets + of_it)
    assert forecast(wider, on).seconds <= now.seconds


@given(workloads, hardware)
def test_a_task_holds_the_keys_of_one_partition_or_none(work: Workload, on: Hardware) -> None:
    found = forecast(work, on)
    rows = math.ceil(work.keys / work.partitions) if work.stream_keyed else 0
    assert model.BASE_MB <= found.task_mb <= model.BASE_MB + rows * model.ROW_KB / 1024 + 1
    many = replace(work, events=work.events * 1000, rows=work.keys)
    assert forecast(many, on).task_mb == found.task_mb, "events of the same keys take no more memory"


@given(workloads, hardware)
def test_no_more_tasks_run_than_there_are_cores(work: Workload, on: Hardware) -> None:
    found = forecast(work, on)
    assert 1 <= found.running <= min(on.cores, max(work.partitions, work.buckets))
    assert found.running <= found.tasks


@given(workloads, hardware)
def test_only_more_of_the_limiting_resource_makes_a_rebuild_faster(work: Workload, on: Hardware) -> None:
    found = forecast(work, on)
    if found.seconds - START_SECONDS < 1:
        return
    # Where two of them are equally narrow, neither helps without the other.
    spark = (replace(work, partitions=2 * work.partitions, buckets=2 * work.buckets), replace(on, cores=2 * on.cores))
    help_ = {
        "brokers": (work, replace(on, brokers=2 * on.brokers)),
        "stores": (work, replace(on, stores=2 * on.stores)),
    }
    assert forecast(*help_.get(found.limit, spark)).seconds < found.seconds
    for other in ("brokers", "stores"):
        if other != found.limit:
            assert forecast(*help_[other]) == found, f"{found.limit} holds it up, and {other} helped"


def figure(name: str) -> float:
    (found,) = [row["ours"] for row in FIGURES if row["name"] == name]
    return float(found)


@pytest.mark.parametrize(
    ("constant", "measured"),
    [
        (model.FOLD_RATE, figure("rebuild.baskets") / 2),
        (model.SORT_RATE, 1_802_892 / figure("year.rebuild.product_sales") / 2),
        (model.WRITE_RATE, figure("sink.rows")),
        (model.EXECUTOR_MB, figure("year.peak.spark driver and executor")),
        (model.BASE_MB, figure("year.peak.spark task") - 13_000 * model.ROW_KB / 1024),
        (model.STORED_KB, figure("year.peak.redis") * 1024 / 227_433),
    ],
    ids=["fold", "sort", "write", "executor", "task", "stored"],
)
def test_the_constants_are_what_was_measured(constant: float, measured: float) -> None:
    assert 0.6 <= constant / measured <= 1.67, f"{constant:,} in the model, {measured:,.2f} in benchmarks/results"


def test_a_plan_of_a_log_that_is_there_says_what_the_model_says() -> None:
    ranges = [OffsetRange("t", partition, 0, 1_000_000) for partition in range(16)]
    tasks = tuple(tuple(ranges[n::4]) for n in range(4))
    plan = RebuildPlan("v", True, {"t": 16}, Position(), tasks, 16, 4)
    found = forecast(Workload(16_000_000, 16, True), Hardware(4))
    assert math.isclose(plan.seconds, found.seconds)
    assert abs(plan.memory - 4 * found.task_mb) <= 4
