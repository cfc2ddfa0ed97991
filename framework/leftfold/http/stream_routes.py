"""Streams over HTTP: the events of a key with their metadata, and the state that they fold to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial, reduce
from itertools import islice
from math import isqrt
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from leftfold.errors import ContractError
from leftfold.http.access import Access
from leftfold.http.problems import error_responses, refusal
from leftfold.http.routes import operation_name, read_in_thread, token_of
from leftfold.model.decider import Decider
from leftfold.model.position import Recorded

__all__ = ["StreamHistory", "add_stream", "recorded_event"]

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


class StreamHistory:
    """The events of one stream, and its state after each of them; of a long stream, the last of them.

    Of `n` events about `√n` states are kept; any other one is folded from the last of these before it.

    Args:
        around: a version that is among them; None = the last. most: how many events are kept.
    """

    def __init__(
        self,
        decider: Decider[Any, Any, Any],
        events: Iterable[Recorded[Any]],
        around: int | None,
        most: int,
    ) -> None:
        self.first, self.has_later, state, kept = 1, False, decider.initial_state, deque[Recorded[Any]]()
        for recorded in events:
            if len(kept) == most:
                if around is not None and around < self.first + most // 2:
                    self.has_later = True
                    break
                state = decider.evolve(state, kept.popleft().event)
                self.first += 1
            kept.append(recorded)
        self._events, self._evolve, self._step = list(kept), decider.evolve, max(1, isqrt(len(kept)))
        self._shown = decider.state.shown
        self.last = self.first + len(kept) - 1
        self._states = [state]
        for end in range(self._step, len(kept) + 1, self._step):
            self._states.append(self._state(end, self._states[-1], end - self._step))

    def _state(self, end: int, state: Any, after: int) -> Any:
        """The state after so many of the kept events, folded from that after fewer of them."""
        return reduce(lambda folded, recorded: self._evolve(folded, recorded.event), self._events[after:end], state)

    def recorded(self, version: int) -> Recorded[Any]:
        """The event of a version, with its metadata."""
        return self._events[version - self.first]

    def state(self, version: int) -> Any:
        """The state after a version, as JSON; also after the version before the first."""
        end = version - self.first + 1
        number = end // self._step
        return self._shown(self._state(end, self._states[number], number * self._step))

    def payload(self, version: int) -> Any:
        """The fields of the event of a version."""
        return to_jsonable_python(self.recorded(version).event)

    def type_of(self, version: int) -> str:
        """The wire name of the event of a version."""
        found: str = type(self.recorded(version).event).__leftfold__.type
        return found

    def before_alike(self, version: int) -> int | None:
        """The last version before this one with an event of the same type; None = there is none among them."""
        wanted = self.type_of(version)
        return next((one for one in range(version - 1, self.first - 1, -1) if self.type_of(one) == wanted), None)


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

    def folded(events: Iterable[Recorded[Any]], most: int) -> tuple[int, Any, Iterable[Recorded[Any]]]:
        """The version and state behind some events, and the last of these: no more of a long stream is held at once."""
        reached, state, last = 0, decider.initial_state, deque[Recorded[Any]](maxlen=most)
        for recorded in events:
            reached, state = recorded.version, decider.evolve(state, recorded.event)
            last.append(recorded)
        return reached, state, last

    async def stream(
        request: Request,
        key: Annotated[str, Path(description="The key of the stream.")],
        version: Annotated[
            int | None, Query(ge=1, le=_LAST, description="The last version; absent = the present.")
        ] = None,
        limit: Annotated[int, Query(ge=0, le=_MOST, description="The most events, counted from the last.")] = 100,
    ) -> StreamState:
        await access.check_stream(request, decider.name, key)
        folding = partial(folded, islice(read(decider.name, key), version), limit)
        try:
            reached, state, last = await read_in_thread(folding)
        except ContractError as error:
            raise refusal(500, f"the log holds what cannot be read: {error}") from error
        if not reached:
            raise refusal(404, f"{decider.name} has no stream {key[:80]!r}")
        events = [recorded_event(recorded) for recorded in last]
        return StreamState(key=key, version=reached, state=decider.state.shown(state), events=events)

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
