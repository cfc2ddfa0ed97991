"""Parses log positions that users type: offsets, a time, or a version of a stream."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any

from leftfold.engine.log_gaps import offsets_for_time
from leftfold.errors import ContractError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import OpenArchive, read_whole
from leftfold.runtime.connect import kafka_settings, open_archive, open_reader
from leftfold.runtime.console import note
from leftfold.runtime.project import Usage, archive_of, unknown

__all__ = ["nothing_there", "place_meant", "read_position"]


_TOPIC = re.compile(r"(?P<topic>[\w.-]+)\[(?P<offsets>\d+:\d+(,\d+:\d+)*)\]")


def read_position(text: str) -> Position:
    """Parses a position: `baskets.events[3:17]` as `leftfold send` prints it, or JSON.

    The JSON is that of `--json`: `{"topic": {"3": 17}}`.

    Raises:
        Usage: the text is neither.
    """
    if text.lstrip().startswith("{"):
        try:
            return Position.from_json(text)
        except ContractError as error:
            raise Usage(str(error)) from error
    found: dict[str, dict[int, int]] = {}
    for part in text.split():
        match = _TOPIC.fullmatch(part)
        if match is None:
            raise Usage(f"{text!r} is no position; it looks like 'baskets.events[3:17]'")
        pairs = (pair.split(":") for pair in match["offsets"].split(","))
        found[match["topic"]] = {int(partition): int(offset) for partition, offset in pairs}
    return Position(found)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STREAM = re.compile(r"(?P<key>.+)@(?P<version>\d+)")
_SHAPES = "a position such as 'baskets.events[3:17]', a time such as 2026-11-01T12:00:00Z, or a stream's version, KEY@5"


def place_meant(view: View[Any, Any], text: str, kafka: str | None, archive: str | None = None) -> Position:
    """Resolves the log position that the text names: offsets, a time, or a version of a stream.

    For a version of a stream, the other partitions end at the time when that version was appended.

    Args:
        archive: directory or URI of the archive, for trimmed events; None = as settings say.

    Raises:
        Usage: the text cannot be parsed, there is no such stream or version, or the position is beyond the log's end.
        InfrastructureError: the position is in a trimmed part of a topic that no archive holds.
    """
    past = archive_of(archive)
    with ClusterAdmin(kafka_settings(kafka)) as cluster:
        if text.lstrip().startswith("{") or re.search(r"\[\d+:\d+", text):
            return _there(view, text, cluster)
        if (moment := _moment(text)) is not None:
            if moment > time.time() * 1000:
                note(f"{text} has not come yet: that is everything up to now")
            return _at(view, moment, cluster, open_archive(past))
        match = _STREAM.fullmatch(text)
        if match is None:
            raise Usage(f"{text!r} is no place of the log; say {_SHAPES}")
        place, appended = _version(view, match["key"], int(match["version"]), kafka, past)
        return _with(_at(view, appended, cluster, open_archive(past)), place)


def _there(view: View[Any, Any], text: str, cluster: Any) -> Position:
    """Parses a typed position and checks it against the cluster.

    Without the check, a typing error would silently build the view from other events.
    """
    position, topics = read_position(text), [names.events(category) for category in view.categories]
    known: dict[str, int] = cluster.topics()
    for topic in position.offsets:
        if topic not in known:
            raise unknown("topic in the log called", topic, topics)
    mine = position.only(topics)
    if not mine.offsets:
        raise Usage(f"{text!r} names nothing that view {view.name} reads, which is {', '.join(topics)}")
    ends: Position = cluster.ends(mine.offsets)
    for topic, partitions in mine.offsets.items():
        for partition, offset in partitions.items():
            if partition >= known[topic]:
                raise Usage(f"{text!r}: {topic} has no partition {partition}; it has {known[topic]}, the first is 0")
            if offset > (end := ends.next_offset(topic, partition)):
                raise Usage(f"{text!r} is beyond the end of {topic}[{partition}], which is {end}")
    return position


def nothing_there(view: View[Any, Any], text: str) -> str:
    """The message for a position before which the log has no event of the view."""
    return (
        f"{text}: nothing of {' and '.join(view.categories)} was appended before that, so the view will be empty. "
        f"A time means when events were appended, by the broker's clock: history that was loaded today is today's. "
        f"Name a version of a stream instead, such as KEY@5, or a position that `leftfold send` printed"
    )


def _at(view: View[Any, Any], moment: int, cluster: Any, past: OpenArchive | None) -> Position:
    """The position after every event that was appended before a time (ms since 1970)."""
    return reduce(or_, (offsets_for_time(cluster, names.events(c), moment, past) for c in view.categories), Position())


def _moment(text: str) -> int | None:
    """Parses a time into ms since 1970, None when it is no time; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH
    # Record timestamps are whole milliseconds: the first record at or after 0.5 ms is the first at or after 1 ms.
    return max(0, -(-since // timedelta(milliseconds=1)))


def _with(others: Position, place: Position) -> Position:
    """The offsets of `others`, replaced by those of `place` in the partitions that it has."""
    offsets: dict[str, Mapping[int, int]] = {
        topic: {**partitions, **place.offsets.get(topic, {})} for topic, partitions in others.offsets.items()
    }
    return Position(offsets)


def _version(view: View[Any, Any], key: str, version: int, kafka: str | None, past: str) -> tuple[Position, int]:
    """The position after a version of a stream, and when that version was appended (ms since 1970)."""
    with closing(open_reader(kafka_settings(kafka), past)()) as reader:
        for topic in map(names.events, view.categories):
            partition = partition_of(key.encode(), reader.partitions(topic))
            end = Position.at(topic, partition, reader.ends([topic]).next_offset(topic, partition))
            for record in read_whole(reader, Position.at(topic, partition, 0), end):
                if record.key == key.encode() and dict(record.headers).get("ce_sequence") == b"%d" % version:
                    return Position.at(topic, partition, record.offset + 1), record.time
    raise Usage(
        f"there is no version {version} of {key} in {', '.join(view.categories)}; "
        f"see: leftfold events {view.categories[0]} {shlex.quote(key)}"
    )
