"""What telemetry reports of a subscription: its flushes, and events from the log until readers see their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.ports.instruments import (
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
from leftfold.ports.protocols import RawRecord

__all__ = ["ProjectionSpans"]

_PROJECTING = {"messaging.system": "kafka", "messaging.operation.name": "project"}


class ProjectionSpans:
    """The spans and figures of one subscription; 16 events at most have spans at a time."""

    def __init__(self) -> None:
        self._views = ""
        self._events: list[tuple[Span, bytes]] = []
        self._flushes: dict[ProjectionWriter, tuple[float, Span]] = {}
        self._began = 0.0

    def restart(self, views: Iterable[str]) -> None:
        """Ends the spans of what will be read again, for these views from now on."""
        self.end("ReadAgain")
        for _, span in self._flushes.values():
            span.fail("ReadAgain")
            span.end()
        self._flushes.clear()
        self._views = ", ".join(sorted(set(views)))

    def read(self, records: Iterable[RawRecord], *, is_first: bool) -> None:
        """Starts the spans of records that were just read.

        Args:
            is_first: they are the first ones of a flush.
        """
        if is_first:
            self._began = clock()
        if not is_traced():
            return
        for record in islice(records, MOST_TRACED - len(self._events)):
            for text in traced([record.headers]):
                about: Attributes = {"leftfold.views": self._views, "messaging.kafka.offset": record.offset}
                self._events.append((PROJECT.span(record.topic, about, parent=text), text))

    def folded(self, count: int, views: Iterable[str]) -> None:
        """Records that so many events were folded into views, and are on their way to the store."""
        for view in sorted(set(views)):
            CONSUMED.record(count, {**member("view", view), **_PROJECTING})
            ATTEMPT_SECONDS.record(clock() - self._began, {**member("view", view), **_PROJECTING})

    @contextmanager
    def flush(self, writer: ProjectionWriter) -> Iterator[None]:
        """Starts the span of a flush that the block sends; it links to the events in it."""
        began, rows, links = clock(), writer.unsent(), [text for _, text in self._events]
        span = FLUSH.span(writer.view.name, {"leftfold.rows": rows}, parent="", links=links)
        try:
            yield
        except BaseException:
            span.fail("NotSent")
            span.end()
            raise
        self._flushes[writer] = began, span
        VIEW_FLUSH_ROWS.record(rows, member("view", writer.view.name))

    def landed(self, writer: ProjectionWriter, *, is_written: bool) -> None:
        """Records how long a flush took, and ends its span."""
        if (sent := self._flushes.pop(writer, None)) is None:
            return
        began, span = sent
        outcome = "written" if is_written else "refused"
        VIEW_FLUSH_SECONDS.record(clock() - began, member("view", writer.view.name, outcome=outcome))
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
