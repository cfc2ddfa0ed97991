"""What `leftfold log trace` puts together: every topic of commands, events and dead letters in the cluster."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

from leftfold import names
from leftfold.cli.console import amount, note
from leftfold.cli.failures import Usage
from leftfold.cli.progress import shown
from leftfold.connection import kafka_settings, ring
from leftfold.engine.moment import place_at
from leftfold.engine.rebuild_progress import Stopwatch
from leftfold.engine.step import Step, step_of
from leftfold.engine.trace_search import made_at, search
from leftfold.position import Position
from leftfold.wholelog import open_archive, open_reader

__all__ = ["ASTRAY", "traced"]

ASTRAY = timedelta(days=1)
"""Clocks are trusted to be less wrong than this; where one is not, the search begins at the beginning."""

_KINDS = (names.commands(""), names.events(""), names.dead(""))
_NAMED = 12
_LATEST = 1 << 47
_AGE = re.compile(r"(?P<count>\d+)(?P<unit>[dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


def traced(id_: str, since: str | None, kafka: str | None, archive: str = "") -> list[Step]:
    """Every step of the correlation that an id belongs to, across all services of the cluster.

    Args:
        since: an age or a time; what was appended before is not looked at. None = from the beginning.
        archive: where events are that topics have lost; '' = nowhere.

    Raises:
        Usage: nothing has this id, or `since` is neither an age nor a time.
    """
    begin = _moment(since) if since is not None else None
    settings = kafka_settings(kafka)
    with ring("leftfold.kafka.cluster").Cluster(settings) as cluster:
        topics = sorted(topic for topic in cluster.topics() if topic.endswith(_KINDS))
        beginning = _Beginning(cluster, archive)
        starts = beginning.of(topics, begin)
        ends: Position = cluster.ends(topics)

        def begun(id_: str) -> Position:
            """Where to begin for an id that tells when it was made."""
            made = made_at(id_) if begin is None else None
            return starts if made is None else beginning.of(topics, min(_utc(made), datetime.now(UTC)) - ASTRAY)

        with closing(open_reader(settings, archive)()) as reader, shown("trace") as report:
            watch = Stopwatch(report)
            found = search(reader, id_, starts, ends, begun=begun, watch=watch)
            watch.end()
    if found.is_short:
        note("some of the newest records could not be read: no broker answers, or a transaction is open before them")
    steps = [step for record in found.records if (step := step_of(record)) is not None]
    if not any(id_ in (step.id, step.correlation) for step in steps):
        raise _unknown(id_, found.looked, topics, since)
    return steps


class _Beginning:
    """Where to begin to read: topics alone hold commands, an archive also the events that they have lost."""

    def __init__(self, cluster: Any, archive: str) -> None:
        self._cluster, self._open = cluster, open_archive(archive)

    def of(self, topics: list[str], begin: datetime | None) -> Position:
        """The first records that there are, or those since a time."""
        return Position.union(self._of(topic, begin) for topic in topics)

    def _of(self, topic: str, begin: datetime | None) -> Position:
        starts: Position = self._cluster.starts([topic])
        kept = self._open().ends(topic) if self._open is not None and any(starts.offsets[topic].values()) else {}
        whole = all(kept.get(p, 0) >= start for p, start in starts.offsets[topic].items())
        if begin is None:
            return Position({topic: dict.fromkeys(starts.offsets[topic], 0)}) if kept and whole else starts
        milliseconds = int(begin.timestamp() * 1000)
        if kept and whole:
            return place_at(self._cluster, topic, milliseconds, self._open)
        found: Position = self._cluster.starts_at(topic, milliseconds)
        return found


def _unknown(id_: str, looked: int, topics: list[str], since: str | None) -> Usage:
    more = f" and {len(topics) - _NAMED} more topics" if len(topics) > _NAMED else ""
    where = (
        f"{amount(looked, 'record')} of {', '.join(topics[:_NAMED])}{more}" if topics else "a cluster without topics"
    )
    wider = "say a longer --since, or leave it out" if since is not None else "commands are kept for a week only"
    return Usage(
        f"no command, event or correlation has the id {id_!r}; searched {where}. {wider[0].upper()}{wider[1:]}; ids "
        f"are told by: leftfold events CATEGORY --json"
    )


def _utc(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(milliseconds, _LATEST))


def _moment(text: str) -> datetime:
    age = _AGE.fullmatch(text)
    if age is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[age["unit"]]: int(age["count"])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Usage(f"--since {text!r} is neither an age such as 2h nor a time such as 2026-01-01T00:00:00Z") from None
    if moment.tzinfo is None:
        raise Usage(f"--since {text!r} has no time zone; write {text}Z for UTC")
    return moment
