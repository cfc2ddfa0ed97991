"""A read as a generator of the queries and waits it needs, so that one body serves threads and asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from leftfold.model.position import Position
from leftfold.ports.flush import Generation
from leftfold.ports.notifications import AnyWaiter, AsyncWaiter, Waiter
from leftfold.ports.protocols import ViewStore
from leftfold.ports.queries import Query

__all__ = ["FlushListener", "Pause", "Steps", "arun", "ask", "run"]


A = TypeVar("A")
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Listen:
    """The step that asks for a waiter on a generation."""

    generation: Generation
    wanted: Position | None


@dataclass(frozen=True)
class Wait:
    """The step that waits for a notification, for so many seconds at most."""

    waiter: AnyWaiter
    seconds: float


@dataclass(frozen=True)
class Pause:
    """The step that waits for so many seconds."""

    seconds: float


Steps: TypeAlias = Generator[Query[Any] | Listen | Wait | Pause, Any, A]


def ask(question: Query[A]) -> Steps[A]:
    """The store's answer to a query."""
    answer: A = yield question
    return answer


def run(store: ViewStore, steps: Steps[A], poll: Callable[[float], None] | None = None) -> A:
    """Runs the steps in this thread; with `poll`, that is called instead of waiting."""
    answer: Any = None
    try:
        while True:
            answer = _step(store, steps.send(answer), poll)
    except StopIteration as end:
        result: A = end.value
        return result
    finally:
        steps.close()


async def arun(store: ViewStore, steps: Steps[A]) -> A:
    """Runs the steps in this coroutine."""
    answer: Any = None
    try:
        while True:
            step = steps.send(answer)
            answer = await (store.aask(step) if isinstance(step, Query) else _astep(store, step))
    except StopIteration as end:
        result: A = end.value
        return result
    finally:
        steps.close()


def _step(store: ViewStore, step: Query[Any] | Listen | Wait | Pause, poll: Callable[[float], None] | None) -> Any:
    match step:
        case Query():
            return store.ask(step)
        case Listen() if poll:
            return Waiter(lambda waiter: None)  # `poll` is called instead
        case Listen():
            return store.listen(step.generation, step.wanted)
        case Wait() | Pause():
            _wait(step, poll)
    return None


def _wait(step: Wait | Pause, poll: Callable[[float], None] | None) -> None:
    if poll is not None:
        poll(min(step.seconds, _POLL_SECONDS))
    elif isinstance(step, Pause):
        time.sleep(step.seconds)
    else:
        waiter: Waiter = step.waiter  # type: ignore[assignment]  # it came from `listen` of this store
        waiter.wait(step.seconds)


async def _astep(store: ViewStore, step: Listen | Wait | Pause) -> Any:
    match step:
        case Listen():
            return await store.alisten(step.generation, step.wanted)
        case Wait():
            waiter: AsyncWaiter = step.waiter  # type: ignore[assignment]  # it came from `alisten` of this store
            await waiter.wait(step.seconds)
        case Pause():
            await asyncio.sleep(step.seconds)
    return None


class FlushListener:
    """The waiter of one reader; the reader closes it."""

    def __init__(self) -> None:
        self._waiter: AnyWaiter | None = None
        self._generation = ""

    def wait(self, generation: Generation, wanted: Position | None, seconds: float) -> Steps[None]:
        """Waits for a flush of a generation, `seconds` at most.

        The first call does not wait but only registers the waiter: an earlier flush was not notified, so the caller
        reads again and calls again.
        """
        if self._waiter is not None and self._generation == generation.id:
            yield Wait(self._waiter, seconds)
            return
        self.close()
        self._waiter = yield Listen(generation, wanted)
        self._generation = generation.id

    def close(self) -> None:
        """Ends the notifications."""
        if self._waiter is not None:
            self._waiter.close()
            self._waiter = None
