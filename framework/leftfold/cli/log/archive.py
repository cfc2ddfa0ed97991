"""`leftfold log archive`, `verify-archive`, `trim`: copies topics to Parquet, checks copies, trims topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING

from leftfold.engine.archive.retention import Trim, Trimming, compare
from leftfold.engine.progress import Report, Stopwatch
from leftfold.errors import InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.ports.bulk import OffsetRange
from leftfold.runtime.connect import open_archive
from leftfold.runtime.console import note, shown
from leftfold.runtime.project import Usage, archive_needed, find_project, load_apps
from leftfold.runtime.servers import topic_of

if TYPE_CHECKING:
    from leftfold.parquet.archive_check import Verified
    from leftfold.parquet.archiver import Archived

__all__ = ["TrimWork", "archived", "verified"]


def archived(category: str, to: str | None, kafka: str | None) -> Archived:
    """Archives the events of a category that were appended since the last run.

    Raises:
        InfrastructureError: another run is at work, or events were deleted before they were archived.
    """
    from leftfold.parquet.archiver import Archiver
    from leftfold.parquet.filesystem import ArchiveFileSystem

    uri = archive_needed(to, "--to")
    settings, topic = topic_of(category, kafka)
    place = ArchiveFileSystem(uri)
    with ClusterAdmin(settings) as cluster:
        identity = cluster.identity(topic)
    log = KafkaBulkLog(settings)
    try:
        with closing(log), shown(f"{category} archive") as report:
            watch = Stopwatch(report)
            archiver = Archiver(place, topic, identity, log, tell=watch.tell)
            watch.begin("copy", sum(part.end - part.start for part in archiver.parts()))
            done = archiver.run()
            watch.end()
            return done
    except KeyboardInterrupt:
        note("interrupted; what was reported is archived, and the next run continues behind it")
        raise


def verified(category: str, given: str | None, kafka: str | None, *, deep: bool) -> tuple[Verified, list[str]]:
    """Checks the archive of a category; with `deep` also lists where it differs from the topic."""
    from leftfold.parquet.archive_check import verify_archive
    from leftfold.parquet.filesystem import ArchiveFileSystem

    uri, topic = archive_needed(given, "--archive"), names.events(category)
    with shown(f"{category} archive") as report:
        watch = Stopwatch(report)
        watch.begin("verify")
        found = verify_archive(ArchiveFileSystem(uri), topic, watch.tell)
        watch.end()
        if not found.position.offsets[topic]:
            raise InfrastructureError(
                f"the archive {uri} holds nothing of {topic}; fill it: leftfold log archive {category} --to {uri}"
            )
        differences = _differences(category, uri, kafka, report) if deep and not found.damages else []
    return found, differences


def _differences(category: str, uri: str, kafka: str | None, report: Report) -> list[str]:
    from leftfold.parquet.archive_reader import ParquetArchive

    settings, topic = topic_of(category, kafka)
    past = ParquetArchive(uri)
    watch = Stopwatch(report)
    with closing(KafkaBulkLog(settings)) as log:
        starts = log.starts([topic])
        parts = [OffsetRange(topic, p, starts.next_offset(topic, p), end) for p, end in past.ends(topic).items()]
        watch.begin("compare", sum(max(0, part.end - part.start) for part in parts))
        found = [compare(past, log, part, watch.tell).difference for part in parts if part.start < part.end]
        watch.end()
    return [difference for difference in found if difference]


class TrimWork:
    """The plan and the run of a trim of one category; the caller closes it.

    Args:
        behind: processes, reactions and streams that need not have read the trimmed events.
    """

    def __init__(self, category: str, archive: str | None, kafka: str | None, behind: Sequence[str] = ()) -> None:
        self._behind = behind
        self.archive = archive_needed(archive, "--archive")
        self._category = category
        settings, self._topic = topic_of(category, kafka)
        self._cluster, self._log = Groups(settings), KafkaBulkLog(settings)

    def close(self) -> None:
        """Closes the clients."""
        self._log.close()
        self._cluster.close()

    def plan(self, before: Position | datetime) -> Trim:
        """Compares the events to be deleted, which are before a position or a time, with the archive.

        Raises:
            Usage: the position is not in the topic of the category.
            InfrastructureError: the archive lacks some of the events.
        """
        wanted = self._wanted(before)
        with shown(f"{self._category} trim") as report:
            watch = Stopwatch(report)
            trimming = self._trimming(watch)
            watch.begin("compare", sum(part.end - part.start for part in trimming.parts(wanted)))
            plan = trimming.plan(wanted)
            watch.end()
        return plan

    def run(self, plan: Trim) -> Position:
        """Deletes the planned events from the topic."""
        return self._trimming(Stopwatch(lambda progress: None)).run(plan)

    def _trimming(self, watch: Stopwatch) -> Trimming:
        past = open_archive(self.archive)
        if past is None:
            raise Usage("nothing is trimmed without an archive; say --archive DIR")
        delete, listeners = self._cluster.delete_records, self._listeners()
        return Trimming(self._topic, past, self._log, delete, listeners=listeners, tell=watch.tell)

    def _listeners(self) -> Mapping[str, Mapping[int, int]]:
        """Offsets of all readers: consumer groups of any App, and this App's processes and streams without offsets."""
        found: dict[str, Mapping[int, int]] = dict(self._cluster.listeners(self._topic))
        for app in load_apps([]).values() if find_project().apps else ():
            for process in app.processes:
                if self._category in process.categories:
                    found.setdefault(f"process {process.name}", {})
            for stream in app.streams:
                if self._category in stream.categories:
                    found.setdefault(f"stream {stream.name}", {})
        return {who: offsets for who, offsets in found.items() if who.rpartition(" ")[2] not in self._behind}

    def _wanted(self, before: Position | datetime) -> Mapping[int, int]:
        if isinstance(before, datetime):
            return self._cluster.starts_at(self._topic, int(before.timestamp() * 1000)).offsets[self._topic]
        if set(before.offsets) != {self._topic}:
            raise Usage(f"--before '{before}' must be a position in {self._topic}, and in no other topic")
        return before.offsets[self._topic]
