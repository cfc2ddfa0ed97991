"""What `leftfold log archive` and `verify-archive` put together."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from leftfold import names
from leftfold.cli.archives import archive_needed, topic_of
from leftfold.cli.console import note
from leftfold.cli.progress import shown
from leftfold.connection import ring
from leftfold.engine.archive_check import compare
from leftfold.engine.bulk_log import Range
from leftfold.engine.rebuild_progress import Report, Stopwatch
from leftfold.errors import InfrastructureError

if TYPE_CHECKING:
    from leftfold.parquet.archiver import Archived
    from leftfold.parquet.verification import Verified

__all__ = ["archived", "verified"]


def archived(category: str, to: str | None, kafka: str | None) -> Archived:
    """Archives what is new of a category.

    Raises:
        InfrastructureError: another run is at work, or events are gone.
    """
    uri = archive_needed(to, "--to")
    settings, topic = topic_of(category, kafka)
    place = ring("leftfold.parquet.place").Place(uri)
    with ring("leftfold.kafka.cluster").Cluster(settings) as cluster:
        identity = cluster.identity(topic)
    log = ring("leftfold.kafka.bulk").KafkaBulkLog(settings)
    try:
        with closing(log), shown(f"{category} archive") as report:
            watch = Stopwatch(report)
            archiver = ring("leftfold.parquet.archiver").Archiver(place, topic, identity, log, tell=watch.tell)
            watch.begin("copy", sum(part.end - part.start for part in archiver.parts()))
            done: Archived = archiver.run()
            watch.end()
            return done
    except KeyboardInterrupt:
        note("interrupted; what was told of is archived, and the next run goes on behind it")
        raise


def verified(category: str, given: str | None, kafka: str | None, *, deep: bool) -> tuple[Verified, list[str]]:
    """What the archive of a category is worth, and where it differs from the topic if that is asked for too."""
    uri, topic = archive_needed(given, "--archive"), names.events(category)
    with shown(f"{category} archive") as report:
        watch = Stopwatch(report)
        watch.begin("verify")
        verify = ring("leftfold.parquet.verification").verify_archive
        found: Verified = verify(ring("leftfold.parquet.place").Place(uri), topic, watch.tell)
        watch.end()
        if not found.position.offsets[topic]:
            raise InfrastructureError(
                f"the archive {uri} holds nothing of {topic}; fill it: leftfold log archive {category} --to {uri}"
            )
        differences = _differences(category, uri, kafka, report) if deep and not found.damages else []
    return found, differences


def _differences(category: str, uri: str, kafka: str | None, report: Report) -> list[str]:
    settings, topic = topic_of(category, kafka)
    past = ring("leftfold.parquet.archive").ParquetArchive(uri)
    watch = Stopwatch(report)
    with closing(ring("leftfold.kafka.bulk").KafkaBulkLog(settings)) as log:
        starts = log.starts([topic])
        parts = [Range(topic, p, starts.next_offset(topic, p), end) for p, end in past.ends(topic).items()]
        watch.begin("compare", sum(max(0, part.end - part.start) for part in parts))
        found = [compare(past, log, part, watch.tell).difference for part in parts if part.start < part.end]
        watch.end()
    return [difference for difference in found if difference]
