"""The routes of server-sent events: they write a feed to each listener, and resume behind `Last-Event-ID`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future as ConcurrentFuture
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from leftfold.client.async_reader import AsyncWatch
from leftfold.client.reader import Views
from leftfold.errors import ContractError, LeftfoldError, LogGap
from leftfold.http.access import Access
from leftfold.http.feeds import Feed, Frame, frame, id_line
from leftfold.http.problems import EVENT_STREAM, ProblemError, error_responses, problem_event, problem_of, refusal
from leftfold.http.routes import (
    POSITION_HEADER,
    FirstConnection,
    ResponseInParts,
    operation_name,
    position_in,
    token_of,
)
from leftfold.http.stream_routes import recorded_event
from leftfold.http.view_routes import TypedView
from leftfold.model import keys as names
from leftfold.model.decider import Decider
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.message_codec import MessageCodec, read_recorded
from leftfold.ports.protocols import LogReader, RawRecord

__all__ = ["add_changes", "add_events"]

_MOST_RECORDS = 1000
_LEADER_SECONDS = 3.0
_SILENCE_SECONDS = 15.0
"""How often a listener without an event is sent its position, which also shows that the connection works."""
_EXPIRED = refusal(401, "the token has expired; come back with another one and the last id").problem
_CHANGE = "Each event is a row that has changed: its key, the row (null = deleted) and its version."
_EVENT = "Each event is a committed event of a stream, with its metadata."
_PROBLEM = f"A caller that accepts {EVENT_STREAM} alone gets a 503 as an event, too: `problem`."
_After: TypeAlias = Annotated[str | None, Query(description=f"Begin behind this {POSITION_HEADER}.", max_length=32_000)]
_LastId: TypeAlias = Annotated[str | None, Header(description="Continue behind this event.")]
T = TypeVar("T")


def add_changes(router: APIRouter, view: View[Any, Any], views: FirstConnection[Views], access: Access) -> Feed:
    """Adds the route of a view's changes; returns the feed, which the caller closes."""
    typed = TypedView(view)

    async def open_source(after: Position | None) -> _ChangeSource:
        source = _ChangeSource(typed, (await views.client())[view].open_watch(after=after))
        with _blaming_no_listener():
            await source.watch.begin()
        return source

    feed = Feed(open_source)

    async def changes(
        request: Request,
        key: Annotated[list[str] | None, Query(description="Only rows of these keys.")] = None,
        after: _After = None,
        last_event_id: _LastId = None,
    ) -> Response:
        await access.principal(request)
        keys, start = frozenset(map(typed.key_named, key or ())), last_event_id or after
        for one in keys or (None,):
            principal = await access.check_view(request, view.name, one)
        return await _listening(
            feed,
            position_in(start) if start else None,
            keys=keys,
            until=principal.expires,
        )

    router.get(
        f"/changes/{view.name}", summary=f"The changes of rows of {view.name}, as server-sent events",
        operation_id=f"watch_{operation_name(view.name)}", name=f"changes of {view.name}",
        tags=[f"view {view.name}"], response_class=StreamingResponse, responses=_answers(_CHANGE),
    )(changes)  # fmt: skip
    return feed


def add_events(
    router: APIRouter, decider: Decider[Any, Any, Any], open_reader: Callable[[], LogReader], access: Access
) -> Feed:
    """Adds the route of a category's committed events; returns the feed, which the caller closes."""

    async def open_source(after: Position | None) -> _EventSource:
        source = _EventSource(decider, open_reader)
        try:
            await source.begin(after)
        except BaseException:
            await source.close()
            raise
        return source

    feed = Feed(open_source)

    async def events(
        request: Request,
        key: Annotated[list[str] | None, Query(description="Only events of these streams.")] = None,
        type: Any = None,
        after: _After = None,
        from_start: Annotated[bool, Query(description="Begin with the first event that is kept.")] = False,
        last_event_id: _LastId = None,
    ) -> Response:
        for one in key or (None,):
            principal = await access.check_stream(request, decider.name, one)
        keys, types, start = frozenset(key or ()), frozenset(type or ()), last_event_id or after
        return await _listening(
            feed,
            position_in(start) if start else None,
            keys=keys,
            types=types,
            from_start=from_start and not start,
            until=principal.expires,
        )

    kinds: Any = Literal[tuple(cls.__leftfold__.type for cls in decider.events)]
    events.__annotations__["type"] = Annotated[list[kinds] | None, Query(description="Only events of these types.")]
    router.get(
        f"/events/{decider.name}", summary=f"The committed events of {decider.name}, as server-sent events",
        operation_id=f"watch_{operation_name(decider.name)}_events", name=f"events of {decider.name}",
        tags=[f"streams of {decider.name}"], response_class=StreamingResponse, responses=_answers(_EVENT),
    )(events)  # fmt: skip
    return feed


def _answers(what: str) -> dict[int | str, dict[str, Any]]:
    schema = {"type": "string", "description": f"{what} {_PROBLEM}"}
    return {
        200: {"content": {EVENT_STREAM: {"schema": schema}}},
        **error_responses(400, 401, 403, 410, 429, 431, 500, 503),
    }


@contextmanager
def _blaming_no_listener() -> Iterator[None]:
    """What is stored and cannot be read is no mistake of who asks."""
    try:
        yield
    except ContractError as error:
        raise LeftfoldError(str(error)) from error


class _EventSource:
    """The source of a feed of committed events; its reader blocks, and has a thread of its own."""

    def __init__(self, decider: Decider[Any, Any, Any], open_reader: Callable[[], LogReader]) -> None:
        self._topic, self._codec = names.events(decider.name), MessageCodec[Any](decider.events)
        self._open = open_reader
        self._reader: LogReader | None = None
        self._threads = ThreadPoolExecutor(1, f"leftfold-events-{decider.name}")
        self._closing: ConcurrentFuture[None] | None = None
        self.position = Position()

    async def begin(self, after: Position | None) -> None:
        self.position = await self._on_thread(self._begin, after)

    async def read(self, timeout: float) -> list[Frame]:
        with _blaming_no_listener():
            found, self.position = await self._on_thread(self._read, timeout)
        return found

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._threads.submit(self._close)
            self._threads.shutdown(wait=False)
        # A listener that disconnects is cancelled here, too; its reader is closed nevertheless, behind its last read.
        await asyncio.shield(asyncio.wrap_future(self._closing))

    def _begin(self, after: Position | None) -> Position:
        reader = self._reader = self._open()
        ends = reader.stable_ends([self._topic])
        if after is None:
            position = ends
        else:
            position = Position(
                {self._topic: {p: after.next_offset(self._topic, p) for p in ends.offsets[self._topic]}}
            )
            reader.check(position)
            self._check_end(reader, position)
        reader.seek(position)
        return position

    def _check_end(self, reader: LogReader, position: Position) -> None:
        """Checks that the log has been as far as a position; a new leader may know of its last events a moment late.

        Raises:
            LogGap: it has not: a listener would miss all events up to there.
        """
        deadline = time.monotonic() + _LEADER_SECONDS
        while not (ends := reader.ends([self._topic])).covers(position):
            if time.monotonic() > deadline:
                raise LogGap(
                    f"{self._topic} ends at {ends}, before {position}: it was deleted and created again, or restored; "
                    f"begin without a position"
                )
            time.sleep(0.1)

    def _read(self, timeout: float) -> tuple[list[Frame], Position]:
        found, position, began = list[Frame](), self.position, time.monotonic()
        if (reader := self._reader) is None:
            return found, position
        for record in reader.poll(_MOST_RECORDS, timeout):
            position = position | Position.at(self._topic, record.partition, record.offset + 1)
            if (one := self._frame(record, position)) is not None:
                found.append(one)
        if not found and time.monotonic() - began < timeout / 2:
            time.sleep(timeout / 2)  # a reader in memory does not wait
        return found, reader.position()

    def _frame(self, record: RawRecord, position: Position) -> Frame | None:
        place = Position.at(self._topic, record.partition, record.offset + 1)
        try:
            recorded = read_recorded(self._codec, record)
        except ContractError as error:
            key, at = (record.key or b"").decode(errors="replace"), f"{record.partition}@{record.offset}"
            return frame(key, "unreadable", position, {"type": "unreadable", "place": at, "why": str(error)}, place)
        if recorded is None:
            return None
        body = recorded_event(recorded)
        return frame(recorded.key, body.type, position, {"key": recorded.key, **body.model_dump(mode="json")}, place)

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    async def _on_thread(self, call: Callable[..., T], *values: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *values)


class _ChangeSource:
    """The source of a feed of changes."""

    def __init__(self, view: TypedView, watch: AsyncWatch[Any, Any]) -> None:
        self._view, self.watch = view, watch

    @property
    def position(self) -> Position:
        return self.watch.position

    async def read(self, timeout: float) -> list[Frame]:
        found = []
        with _blaming_no_listener():
            changes = await self.watch.next_changes(timeout)
        for change in changes:
            key = self._view.key_of(change.key)
            row = None if change.row is None else self._view.shown(change.row, None)
            found.append(frame(key, "change", change.position, {"key": key, "row": row, "version": change.version}))
        return found

    async def close(self) -> None:
        self.watch.close()


async def _listening(
    feed: Feed,
    after: Position | None,
    *,
    keys: frozenset[str] = frozenset(),
    types: frozenset[str] = frozenset(),
    from_start: bool = False,
    until: float | None = None,
) -> StreamingResponse:
    """The answer that sends a listener frames of a feed, until it goes away.

    Args:
        keys, types: what it wants; nothing = everything.
        until: when its token expires, in seconds since 1970: soon after, it has to come back with another one.

    Raises:
        ProblemError: too many listeners catch up. LeftfoldError: nothing can be read from that position.
    """
    found = feed.listen(after, from_start=from_start)
    start, _ = await anext(found)

    async def body() -> AsyncGenerator[bytes, None]:
        now = asyncio.get_running_loop().time
        sent, reached = now(), start
        try:
            yield b"retry: 1000\n" + id_line(start) + b"\n"
            async for position, frames in found:
                if until is not None and time.time() > until:
                    raise ProblemError(_EXPIRED)
                chosen = frames.chosen(keys, types)
                if chosen or now() - sent >= _SILENCE_SECONDS:
                    sent = now()
                    yield chosen or id_line(position) + b"\n"
                reached = position
        except (ProblemError, LeftfoldError) as error:
            yield id_line(reached) + problem_event(problem_of(error))
        finally:
            await found.aclose()

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", POSITION_HEADER: token_of(start)}
    return ResponseInParts(body(), EVENT_STREAM, headers)
