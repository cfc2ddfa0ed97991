"""What `leftfold log trim` puts together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from leftfold.cli.archives import archive_needed, topic_of
from leftfold.cli.failures import Usage
from leftfold.cli.positions import read_position
from leftfold.cli.progress import shown
from leftfold.cli.project import find_project, load_apps
from leftfold.connection import ring
from leftfold.engine.rebuild_progress import Stopwatch
from leftfold.engine.trimming import Trim, Trimming
from leftfold.position import Position
from leftfold.wholelog import open_archive

__all__ = ["TrimWork"]

_AGE = re.compile(r"(?P<count>\d+)(?P<unit>[dh])")


class TrimWork:
    """Plans a trim of one category, and does it.

    Args:
        behind: processes, reactions and streams that need not have read what is trimmed.
    """

    def __init__(self, category: str, archive: str | None, kafka: str | None, behind: Sequence[str] = ()) -> None:
        self._behind = behind
        self.archive = archive_needed(archive, "--archive")
        self._category = category
        settings, self._topic = topic_of(category, kafka)
        self._cluster: Any = ring("leftfold.kafka.groups").Groups(settings)
        self._log: Any = ring("leftfold.kafka.bulk").KafkaBulkLog(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._log.close()
        self._cluster.close()

    def plan(self, before: str | None, older_than: str | None) -> Trim:
        """Compares with the archive what is to go.

        Raises:
            Usage: neither or both are said, or what is said is no position, time or age.
            InfrastructureError: the archive lacks some of it.
        """
        wanted = self._wanted(before, older_than)
        with shown(f"{self._category} trim") as report:
            watch = Stopwatch(report)
            trimming = self._trimming(watch)
            watch.begin("compare", sum(part.end - part.start for part in trimming.parts(wanted)))
            plan = trimming.plan(wanted)
            watch.end()
        return plan

    def run(self, plan: Trim) -> Position:
        """Deletes it."""
        return self._trimming(Stopwatch(lambda progress: None)).run(plan)

    def _trimming(self, watch: Stopwatch) -> Trimming:
        past = open_archive(self.archive)
        if past is None:
            raise Usage("nothing is trimmed without an archive; say --archive DIR")
        delete, listeners = self._cluster.delete_records, self._listeners()
        return Trimming(self._topic, past, self._log, delete, listeners=listeners, tell=watch.tell)

    def _listeners(self) -> Mapping[str, Mapping[int, int]]:
        """How far everybody is who listens: whoever has read it, of any App, and who is to in the App here."""
        found: dict[str, Mapping[int, int]] = dict(self._cluster.listeners(self._topic))
        for app in load_apps([]).values() if find_project().apps else ():
            for process in app.processes:
                if self._category in process.categories:
                    found.setdefault(f"process {process.name}", {})
            for stream in app.streams:
                if self._category in stream.categories:
                    found.setdefault(f"stream {stream.name}", {})
        return {who: offsets for who, offsets in found.items() if who.rpartition(" ")[2] not in self._behind}

    def _wanted(self, before: str | None, older_than: str | None) -> Mapping[int, int]:
        if (before is None) == (older_than is None):
            raise Usage("up to where? say --before POSITION|TIME or --older-than AGE, one of them")
        if older_than is not None:
            return self._since(datetime.now(UTC) - _age(older_than))
        text = before or ""
        if "[" in text or "{" in text:
            position = read_position(text)
            if set(position.offsets) != {self._topic}:
                raise Usage(f"--before {text!r} must be a position in {self._topic}, and in no other topic")
            return position.offsets[self._topic]
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise Usage(f"--before {text!r} is neither a position nor a time such as 2026-01-01T00:00:00Z") from None
        if time.tzinfo is None:
            raise Usage(f"--before {text!r} has no time zone; write {text}Z for UTC")
        return self._since(time)

    def _since(self, time: datetime) -> Mapping[int, int]:
        found: Position = self._cluster.starts_at(self._topic, int(time.timestamp() * 1000))
        return found.offsets[self._topic]


def _age(text: str) -> timedelta:
    found = _AGE.fullmatch(text)
    if found is None:
        raise Usage(f"--older-than {text!r} is no age; it looks like 30d or 12h")
    count = int(found["count"])
    return timedelta(days=count) if found["unit"] == "d" else timedelta(hours=count)
