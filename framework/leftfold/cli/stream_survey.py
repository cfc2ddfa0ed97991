"""Looks at the streams of an App: how many processes are at work, and how far they are behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leftfold import names
from leftfold.app import App
from leftfold.cli.console import lasting
from leftfold.cli.freshness import Freshness
from leftfold.connection import kafka_settings, ring
from leftfold.errors import LeftfoldError
from leftfold.position import Position
from leftfold.streaming import Streaming

__all__ = ["survey_streams"]

Row = dict[str, Any]
_FAR = 10.0
"""Seconds behind which nobody takes for work under way."""


def survey_streams(app: App, kafka: str | None, problems: list[str]) -> Iterator[Row]:
    """A row of `status` for each; what is to be done about them goes to `problems`.

    Raises:
        InfrastructureError: no broker answers.
    """
    settings = kafka_settings(kafka)
    with ring("leftfold.kafka.groups").Groups(settings) as groups, Freshness(kafka, "") as freshness:
        topics, streams = groups.topics(), groups.streams()
        for stream in app.streams:
            found = streams.get((app.name, stream.name))
            running = found.running if found else 0
            if not running:
                problems.append(f"nobody is at work on stream {stream.name}; start: leftfold run {stream.name}")
            row: Row = {"kind": "stream", "name": stream.name, "events": ", ".join(stream.categories)}
            row |= {"views": ", ".join(view.name for view in stream.views), "running": running}
            read = [names.events(category) for category in stream.categories if names.events(category) in topics]
            ends: Position = groups.ends(read)
            reached = [groups.committed(group, read) for group in found.current] if found else [Position()]
            done = max(reached, key=ends.ahead_of)
            row["lag"] = ends.ahead_of(done) if done.offsets else None
            row["behind"] = _behind(stream, freshness, Position({t: done.offsets.get(t, {}) for t in read}), problems)
            yield row


def _behind(stream: Streaming, freshness: Freshness, position: Position, problems: list[str]) -> float | None:
    """How old the first event is that is not acknowledged, in seconds; None = nobody can tell."""
    try:
        behind = float(freshness.seconds(position))
    except LeftfoldError as error:
        problems.append(f"nobody can tell how far stream {stream.name} is behind: {error}")
        return None
    if behind > _FAR:
        problems.append(
            f"stream {stream.name} has not acknowledged an event that was written {lasting(behind)} ago; see whether "
            f"it moves: leftfold status. If it does not, what leftfold run {stream.name} logs says why"
        )
    return round(behind, 3)
