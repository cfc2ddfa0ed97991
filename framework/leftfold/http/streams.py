"""Streams over HTTP: the events of a key with their metadata, and the state that they fold to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future as ConcurrentFuture
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from starlette.concurrency import run_in_threadpool

from leftfold.errors import ContractError
from leftfold.http.access import Access
from leftfold.http.feeds import EVENT_STREAM, Feed, Frame, frame, listening
from leftfold.http.problems import error_responses, refusal
from leftfold.http.routes import operation_name
from leftfold.http.tokens import POSITION_HEADER, position_in, token_of
from leftfold.model import keys as names
from leftfold.model.decider import Decider
from leftfold.model.position import Position, Recorded
from leftfold.ports.codec import MessageCodec, read_recorded
from leftfold.ports.protocols import LogReader, RawRecord

__all__ = ["add_events", "add_stream"]

_MOST, _LAST = 1000, 2**53
_EVENTS = "Each event is a committed event of a stream, with its metadata."
T = TypeVar("T")


class RecordedEvent(BaseModel):
    """An event of a stream with its metadata; `position` is the token of the place right behind it."""

    type: str
    event: dict[str, Any]
    id: str
    version: int
    time: datetime
    decision: tuple[int, int]
    correlation_id: str
    causation_id: str
    principal: str
    position: str


class StreamState(BaseModel):
    """Events of a stream, and its state at `version`, the version of the last event shown."""

    key: str
    version: int
    state: Any
    events: list[RecordedEvent]


def add_stream(
    router: APIRouter,
    decider: Decider[Any, Any, Any],
    read: Callable[[str, str], Iterable[Recorded[Any]]],
    access: Access,
) -> None:
    """Adds the route of a category's streams.

    Args:
        read: the events of a stream, given its category and key.
    """

    async def stream(
        request: Request,
        key: Annotated[str, Path(description="The key of the stream.")],
        version: Annotated[
            int | None, Query(ge=1, le=_LAST, description="The last version; absent = the present.")
        ] = None,
        limit: Annotated[int, Query(ge=0, le=_MOST, description="The most events, counted from the last.")] = 100,
    ) -> StreamState:
        await access.check_stream(request, decider.name, key)
        events = await run_in_threadpool(lambda: list(islice(read(decider.name, key), version)))
        if not events:
            raise refusal(404, f"{decider.name} has no stream {key[:80]!r}")
        state = decider.fold(decider.initial_state, [recorded.event for recorded in events])
        last = [_shown(recorded) for recorded in events[len(events) - limit :]] if limit else []
        return StreamState(key=key, version=events[-1].version, state=to_jsonable_python(state), events=last)

    router.get(
        f"/streams/{decider.name}/{{key:path}}", summary=f"The events and the state of a stream of {decider.name}",
        operation_id=f"get_{operation_name(decider.name)}_stream",
        name=f"stream of {decider.name}", tags=[f"streams of {decider.name}"],
        responses=error_responses(400, 401, 403, 404, 410, 431, 500, 503),
    )(stream)  # fmt: skip


def _shown(recorded: Recorded[Any]) -> RecordedEvent:
    return RecordedEvent(
        type=type(recorded.event).__leftfold__.type,
        event=to_jsonable_python(recorded.event),
        id=recorded.id,
        version=recorded.version,
        time=recorded.time,
        decision=recorded.decision,
        correlation_id=recorded.correlation_id,
        causation_id=recorded.causation_id,
        principal=recorded.principal,
        position=token_of(recorded.position),
    )


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
        after: Annotated[str | None, Query(description=f"Begin behind this {POSITION_HEADER}.")] = None,
        from_start: Annotated[bool, Query(description="Begin with the first event that is kept.")] = False,
        last_event_id: Annotated[str | None, Header(description="Continue behind this event.")] = None,
    ) -> Response:
        for one in key or (None,):
            principal = await access.check_stream(request, decider.name, one)
        keys, types, start = set(key or ()), set(type or ()), last_event_id or after
        from_start = from_start and not start
        return await listening(
            feed,
            position_in(start) if start else None,
            lambda one: (not keys or one.key in keys) and (not types or one.type in types),
            from_start=from_start,
            until=principal.expires,
        )

    kinds: Any = Literal[tuple(cls.__leftfold__.type for cls in decider.events)]
    events.__annotations__["type"] = Annotated[list[kinds] | None, Query(description="Only events of these types.")]
    router.get(
        f"/events/{decider.name}", summary=f"The committed events of {decider.name}, as server-sent events",
        operation_id=f"watch_{operation_name(decider.name)}_events",
        name=f"events of {decider.name}", tags=[f"streams of {decider.name}"], response_class=StreamingResponse,
        responses={200: {"content": {EVENT_STREAM: {"schema": {"type": "string", "description": _EVENTS}}}},
                   **error_responses(400, 401, 403, 410, 429, 431, 500, 503)},
    )(events)  # fmt: skip
    return feed


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
        reader.seek(position)
        return position

    def _read(self, timeout: float) -> tuple[list[Frame], Position]:
        found, position, began = list[Frame](), self.position, time.monotonic()
        if (reader := self._reader) is None:
            return found, position
        for record in reader.poll(_MOST, timeout):
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
        body = _shown(recorded)
        return frame(recorded.key, body.type, position, {"key": recorded.key, **body.model_dump(mode="json")}, place)

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    async def _on_thread(self, call: Callable[..., T], *values: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *values)
