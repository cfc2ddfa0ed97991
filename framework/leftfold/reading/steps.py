"""How a read is written once for threads and asyncio: as a generator of what it needs next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from leftfold.flush import Generation
from leftfold.ports import AsyncBell, Bell, ViewStore
from leftfold.position import Position
from leftfold.questions import Question

__all__ = ["Held", "Listen", "Pause", "Steps", "Wait", "arun", "ask", "listen", "run"]

A = TypeVar("A")
_POLL_SECONDS = 0.01


class Held(Protocol):
    """A bell, for a thread or for a coroutine."""

    def close(self) -> None:
        """Nobody listens any more."""


@dataclass(frozen=True)
class Listen:
    """Wants a bell."""

    generation: Generation
    wanted: Position | None


@dataclass(frozen=True)
class Wait:
    """Waits for a bell, for so long at most."""

    bell: Held
    seconds: float


@dataclass(frozen=True)
class Pause:
    """Lets some time pass."""

    seconds: float


Steps: TypeAlias = Generator[Question[Any] | Listen | Wait | Pause, Any, A]


def ask(question: Question[A]) -> Steps[A]:
    """The store's answer."""
    answer: A = yield question
    return answer


def listen(generation: Generation, wanted: Position | None) -> Steps[Held]:
    """A bell that rings from now on; whoever asked closes it."""
    bell: Held = yield Listen(generation, wanted)
    return bell


def run(store: ViewStore, steps: Steps[A], poll: Callable[[float], None] | None = None) -> A:
    """Takes the steps in this thread; with `poll`, that is called instead of waiting."""
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
    """Takes the steps in this coroutine."""
    answer: Any = None
    try:
        while True:
            step = steps.send(answer)
            answer = await (store.aask(step) if isinstance(step, Question) else _astep(store, step))
    except StopIteration as end:
        result: A = end.value
        return result
    finally:
        steps.close()


def _step(store: ViewStore, step: Question[Any] | Listen | Wait | Pause, poll: Callable[[float], None] | None) -> Any:
    match step:
        case Question():
            return store.ask(step)
        case Listen():
            return _Polled() if poll else store.listen(step.generation, step.wanted)
        case Wait() | Pause():
            _wait(step, poll)
    return None


def _wait(step: Wait | Pause, poll: Callable[[float], None] | None) -> None:
    if poll is not None:
        poll(min(step.seconds, _POLL_SECONDS))
    elif isinstance(step, Pause):
        time.sleep(step.seconds)
    else:
        bell: Bell = step.bell  # type: ignore[assignment]  # it came from `listen` of this store
        bell.wait(step.seconds)


async def _astep(store: ViewStore, step: Listen | Wait | Pause) -> Any:
    match step:
        case Listen():
            return await store.alisten(step.generation, step.wanted)
        case Wait():
            bell: AsyncBell = step.bell  # type: ignore[assignment]  # it came from `alisten` of this store
            await bell.wait(step.seconds)
        case Pause():
            await asyncio.sleep(step.seconds)
    return None


class _Polled:
    """Stands in for a bell where somebody else decides what waiting is."""

    def close(self) -> None:
        """Nothing to let go of."""
