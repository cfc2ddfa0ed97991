"""What `leftfold state verify` puts together."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from leftfold.cli.rebuilding import spark_settings
from leftfold.connection import kafka_settings, ring
from leftfold.decider import Decider
from leftfold.engine.rebuild_progress import Report, Stopwatch
from leftfold.engine.state_check import PartitionCheck, StateCheck, check_here
from leftfold.names import events

__all__ = ["checked"]


def checked(
    decider: Decider[Any, Any, Any], kafka: str | None, on_spark: bool, master: str | None, report: Report
) -> list[PartitionCheck]:
    """Every partition's check, here or on Spark."""
    check = StateCheck.plan(decider, partial(ring("leftfold.kafka.bulk").KafkaBulkLog, kafka_settings(kafka)))
    watch = Stopwatch(report)
    watch.begin("check", sum(check.ends.offsets[events(decider.name)].values()))
    results: Iterable[PartitionCheck]
    if on_spark:
        with ring("leftfold.spark.session").spark_session(spark_settings(master)) as session:
            results = ring("leftfold.spark.checks").spark_checks(session)(check, watch.tell)
    else:
        results = check_here(check, watch.tell)
    watch.end()
    return list(results)
