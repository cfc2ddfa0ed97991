"""Streams over HTTP: the events of a key with their metadata, and the state that they fold to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from starlette.concurrency import run_in_threadpool

from leftfold.http.access import Access
from leftfold.http.problems import error_responses, refusal
from leftfold.http.routes import operation_name, token_of
from leftfold.model.decider import Decider
from leftfold.model.position import Recorded

__all__ = ["add_stream", "recorded_event"]

_MOST, _LAST = 1000, 2**53


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
        last = [recorded_event(recorded) for recorded in events[len(events) - limit :]] if limit else []
        return StreamState(key=key, version=events[-1].version, state=to_jsonable_python(state), events=last)

    router.get(
        f"/streams/{decider.name}/{{key:text}}", summary=f"The events and the state of a stream of {decider.name}",
        operation_id=f"get_{operation_name(decider.name)}_stream",
        name=f"stream of {decider.name}", tags=[f"streams of {decider.name}"],
        responses=error_responses(400, 401, 403, 404, 410, 431, 500, 503),
    )(stream)  # fmt: skip


def recorded_event(recorded: Recorded[Any]) -> RecordedEvent:
    """An event of the log as answers show it."""
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
