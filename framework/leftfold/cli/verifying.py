"""What `leftfold state verify` puts together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from leftfold.cli.archives import archive_of
from leftfold.cli.rebuilding import spark_settings
from leftfold.connection import kafka_settings, ring
from leftfold.decider import Decider
from leftfold.engine.rebuild_progress import Report, Stopwatch
from leftfold.engine.state_check import PartitionCheck, StateCheck, check_here
from leftfold.names import events
from leftfold.wholelog import open_bulk

__all__ = ["checked"]


def checked(
    decider: Decider[Any, Any, Any],
    kafka: str | None,
    archive: str | None,
    *,
    on_spark: bool,
    master: str | None,
    report: Report,
) -> list[PartitionCheck]:
    """Every partition's check, here or on Spark."""
    check = StateCheck.plan(decider, open_bulk(kafka_settings(kafka), archive_of(archive)))
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
