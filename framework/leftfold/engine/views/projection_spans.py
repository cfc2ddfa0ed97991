"""What telemetry reports of a subscription: its flushes, and events from the log until readers see their rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.ports.protocols import RawRecord
from leftfold.ports.telemetry import (
    ATTEMPT_SECONDS,
    CONSUMED,
    FLUSH,
    MOST_TRACED,
    PROJECT,
    VIEW_FLUSH_ROWS,
    VIEW_FLUSH_SECONDS,
    Attributes,
    Span,
    clock,
    is_traced,
    member,
    traced,
)

__all__ = ["ProjectionSpans"]

_PROJECTING = {"messaging.system": "kafka", "messaging.operation.name": "project"}


class ProjectionSpans:
    """The spans and figures of one subscription; 16 events at most have spans at a time."""

    def __init__(self) -> None:
        self._views: list[str] = []
        self._events: list[tuple[Span, bytes]] = []
        self._flushes: dict[ProjectionWriter, tuple[float, int, Span]] = {}
        self._began = 0.0

    def restart(self, views: Iterable[str]) -> None:
        """Ends the spans of what will be read again, for these views from now on."""
        self.end("ReadAgain")
        for *_, span in self._flushes.values():
            span.fail("ReadAgain")
            span.end()
        self._flushes.clear()
        self._views = sorted(set(views))

    def read(self, records: Iterable[RawRecord], *, is_first: bool) -> None:
        """Starts the spans of records that were just read.

        Args:
            is_first: they are the first ones of a flush.
        """
        if is_first:
            self._began = clock()
        if not is_traced():
            return
        views = ", ".join(self._views)
        for record in islice(records, MOST_TRACED - len(self._events)):
            for text in traced([record.headers]):
                about: Attributes = {"leftfold.views": views, "messaging.kafka.offset": record.offset}
                self._events.append((PROJECT.span(record.topic, about, parent=text), text))

    def folded(self, count: int) -> None:
        """Records that so many events are on their way to the store."""
        for view in self._views:
            CONSUMED.record(count, {**member("view", view), **_PROJECTING})
            ATTEMPT_SECONDS.record(clock() - self._began, {**member("view", view), **_PROJECTING})

    def flush(self, writer: ProjectionWriter) -> None:
        """Starts the span of a writer's flush, which links to the events in it."""
        rows, links = writer.unsent(), [text for _, text in self._events]
        span = FLUSH.span(writer.view.name, {"leftfold.rows": rows}, parent="", links=links)
        self._flushes[writer] = clock(), rows, span

    def landed(self, writer: ProjectionWriter, *, is_written: bool) -> None:
        """Records how large a flush was and how long it took, and ends its span."""
        if (sent := self._flushes.pop(writer, None)) is None:
            return
        began, rows, span = sent
        view, outcome = writer.view.name, "written" if is_written else "refused"
        VIEW_FLUSH_ROWS.record(rows, member("view", view))
        VIEW_FLUSH_SECONDS.record(clock() - began, member("view", view, outcome=outcome))
        if not is_written:
            span.fail("OutOfStep", "another writer was here, or the store lost its answer")
        span.end()

    def end(self, failed: str = "") -> None:
        """Ends the spans of events: their rows can be read, unless the flush failed."""
        for span, _ in self._events:
            if failed:
                span.fail(failed)
            span.end()
        self._events.clear()
