"""Traces of commands and events: every record of a correlation, across all services of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

from leftfold.engine.causation import TraceStep, id_time, search, step_of
from leftfold.engine.log_gaps import offsets_for_time
from leftfold.engine.progress import ProgressReport, Stopwatch
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.runtime.connect import kafka_settings, open_archive, open_reader
from leftfold.runtime.console import amount, note
from leftfold.runtime.project import Usage

__all__ = ["ASTRAY", "traced"]

ASTRAY = timedelta(days=1)
"""Largest clock error that the search allows for: it starts this much before the time in an id."""

_KINDS = (names.commands(""), names.events(""), names.dead(""))
_NAMED = 12
_LATEST = 1 << 47


def traced(
    id_: str,
    since: datetime | None,
    kafka: str | None,
    archive: str = "",
    *,
    report: ProgressReport = lambda progress: None,
    warn: Callable[[str], None] = note,
) -> list[TraceStep]:
    """Every step of the correlation that an id belongs to, across all services of the cluster.

    Args:
        since: records appended before are not read. None = from the beginning.
        archive: the archive with events that topics have lost; '' = none.
        report: called with the progress. warn: called with a message about records that could not be read.

    Raises:
        Usage: nothing has this id.
    """
    settings = kafka_settings(kafka)
    with ClusterAdmin(settings) as cluster:
        topics = sorted(topic for topic in cluster.topics() if topic.endswith(_KINDS))
        beginning = _Beginning(cluster, archive)
        starts = beginning.of(topics, since)
        ends: Position = cluster.ends(topics)

        def begun(id_: str) -> Position:
            """Where to start for an id that contains its time of creation."""
            made = id_time(id_) if since is None else None
            return starts if made is None else beginning.of(topics, min(_utc(made), datetime.now(UTC)) - ASTRAY)

        with closing(open_reader(settings, archive)()) as reader:
            watch = Stopwatch(report)
            found = search(reader, id_, starts, ends, begun=begun, watch=watch)
            watch.end()
    if found.is_short:
        warn("some of the newest records could not be read: no broker answers, or a transaction is open before them")
    steps = [step for record in found.records if (step := step_of(record)) is not None]
    if not any(id_ in (step.id, step.correlation) for step in steps):
        raise _unknown(id_, found.looked, topics, since)
    return steps


class _Beginning:
    """Start positions of a search: a topic alone has commands, an archive also has events that the topic has lost."""

    def __init__(self, cluster: Any, archive: str) -> None:
        self._cluster, self._open = cluster, open_archive(archive)

    def of(self, topics: list[str], begin: datetime | None) -> Position:
        """The first records that exist, or the first since a time."""
        return Position.union(self._of(topic, begin) for topic in topics)

    def _of(self, topic: str, begin: datetime | None) -> Position:
        starts: Position = self._cluster.starts([topic])
        kept = self._open().ends(topic) if self._open is not None and any(starts.offsets[topic].values()) else {}
        whole = all(kept.get(p, 0) >= start for p, start in starts.offsets[topic].items())
        if begin is None:
            return Position({topic: dict.fromkeys(starts.offsets[topic], 0)}) if kept and whole else starts
        milliseconds = int(begin.timestamp() * 1000)
        if kept and whole:
            return offsets_for_time(self._cluster, topic, milliseconds, self._open)
        found: Position = self._cluster.starts_at(topic, milliseconds)
        return found


def _unknown(id_: str, looked: int, topics: list[str], since: datetime | None) -> Usage:
    more = f" and {len(topics) - _NAMED} more topics" if len(topics) > _NAMED else ""
    where = (
        f"{amount(looked, 'record')} of {', '.join(topics[:_NAMED])}{more}" if topics else "a cluster without topics"
    )
    wider = "say a longer --since, or leave it out" if since is not None else "commands are kept for a week only"
    return Usage(
        f"no command, event or correlation has the id {id_!r}; searched {where}. {wider[0].upper()}{wider[1:]}; ids "
        f"are listed by: leftfold events CATEGORY --json"
    )


def _utc(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(milliseconds, _LATEST))
