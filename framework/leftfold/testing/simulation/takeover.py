"""Replaces time, chance, threads and clients in the simulated modules, and restores them afterwards."""

from __future__ import annotations

import atexit as real_atexit
import importlib
import io
import logging
import os as real_os
import pkgutil
import queue as real_queue
import random as real_random
import secrets as real_secrets
import sys as real_sys
import threading as real_threading
import time as real_time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import confluent_kafka
from confluent_kafka import admin as real_admin

from leftfold.testing.simulation.environment import active, is_simulated
from leftfold.testing.simulation.kafka.admin import AdminClient
from leftfold.testing.simulation.kafka.brokers import BORN
from leftfold.testing.simulation.kafka.consumer import Consumer
from leftfold.testing.simulation.kafka.producer import Producer
from leftfold.testing.simulation.stand_ins import threads
from leftfold.testing.simulation.stand_ins.threads import Module, simulated_function

__all__ = ["PACKAGES", "simulated", "taken_over"]

PACKAGES = (
    "leftfold.kafka",
    "leftfold.engine",
    "leftfold.client",
    "leftfold.ports.bulk",
    "leftfold.ports.notifications",
)
"""Packages and modules that run simulated, with all their modules."""
_TICK = 2e-6
"""The longest time in seconds that reading the clock takes, so that work takes virtual time."""


def _now() -> float:
    scheduler = active().scheduler
    task = scheduler.current
    if task is None:
        return scheduler.now
    process = task.process
    process.drift += scheduler.random.random() * _TICK
    return scheduler.now + process.drift


def _wall() -> float:
    world = active()
    task = world.scheduler.current
    return BORN + _now() + (0.0 if task is None else task.process.skew)


def _sleep(seconds: float) -> None:
    world = active()
    world.process.step("sleep")
    world.scheduler.wait(max(seconds, 1e-6))


def _token_bytes(count: int = 32) -> bytes:
    return active().random.randbytes(count)


def _token_hex(count: int = 32) -> str:
    return _token_bytes(count).hex()


def _randbits(count: int) -> int:
    return active().random.getrandbits(count)


def _randbelow(count: int) -> int:
    return active().random.randrange(count)


def _random_float() -> float:
    return active().random.random()


def _uuid4() -> uuid.UUID:
    return uuid.UUID(bytes=_token_bytes(16), version=4)


def _exit(code: int) -> None:
    active().process.end(code)


class _Random(Module):
    """`random`, seeded by the world."""

    def __getattr__(self, name: str) -> Any:
        return getattr(active().random if is_simulated() and name != "Random" else real_random, name)


_time = Module(
    real_time,
    monotonic=_now,
    perf_counter=_now,
    process_time=_now,
    time=_wall,
    time_ns=lambda: int(_wall() * 1e9),
    monotonic_ns=lambda: int(_now() * 1e9),
    sleep=_sleep,
)
_secrets = Module(
    real_secrets,
    token_bytes=_token_bytes,
    token_hex=_token_hex,
    randbits=_randbits,
    randbelow=_randbelow,
)
_os = Module(real_os, urandom=_token_bytes, _exit=_exit, getpid=lambda: active().process.number)
_random = _Random(real_random)
_sys = Module(real_sys, stderr=io.StringIO())
_atexit = Module(real_atexit, register=lambda function, *args, **more: function, unregister=lambda function: None)


def _stand_ins() -> list[tuple[Any, Any]]:
    return [
        (real_time, _time),
        (real_time.monotonic, _now),
        (real_time.perf_counter, _now),
        (real_time.process_time, _now),
        (real_time.time, _wall),
        (real_time.sleep, _sleep),
        (real_threading, threads.threading),
        (real_threading.Lock, threads.SimulatedLock),
        (real_threading.RLock, threads.SimulatedRLock),
        (real_threading.Thread, threads.SimulatedThread),
        (real_threading.Event, threads.SimulatedEvent),
        (real_threading.Condition, threads.SimulatedCondition),
        (real_queue, threads.queue),
        (real_queue.SimpleQueue, threads.SimpleQueue),
        (real_random, _random),
        (real_random.random, _random_float),
        (real_secrets, _secrets),
        (uuid.uuid4, _uuid4),
        (real_os, _os),
        (real_sys, _sys),
        (real_atexit, _atexit),
        (confluent_kafka.Consumer, Consumer),
        (confluent_kafka.Producer, Producer),
        (real_admin.AdminClient, AdminClient),
    ]


def simulated(packages: Sequence[str] = PACKAGES, libraries: Sequence[str] = ()) -> list[ModuleType]:
    """The modules that run simulated: all of some packages, and those of loaded libraries."""
    found = []
    for package in packages:
        module = importlib.import_module(package)
        inside = pkgutil.walk_packages(getattr(module, "__path__", ()), f"{package}.")
        found += [module, *(importlib.import_module(info.name) for info in inside)]
    loaded = tuple(f"{name}." for name in libraries)
    return found + [module for name, module in real_sys.modules.items() if name.startswith(loaded)]


@contextmanager
def taken_over(
    packages: Sequence[str] = PACKAGES, more: Sequence[tuple[Any, Any]] = (), libraries: Sequence[str] = ()
) -> Iterator[None]:
    """Replaces, within the block, time, chance and the network by stand-ins in the simulated modules.

    Globals and defaults of functions are replaced where they are one of the real objects. Threads outside the
    simulation, such as those of an App that a test session keeps running, use the real ones.

    Args:
        packages, libraries: see `simulated`. more: further pairs of a real object and its stand-in.
    """
    pairs = {id(real): (real, simulated_function(real, stand_in)) for real, stand_in in [*_stand_ins(), *more]}
    undo: list[Callable[[], None]] = []
    # Clients log thousands of broken connections here; workers report what matters.
    log = logging.getLogger("leftfold")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        for module in simulated(packages, libraries):
            _exchange(module, pairs, undo)
        yield
    finally:
        log.setLevel(level)
        for action in reversed(undo):
            action()


def _exchange(module: ModuleType, pairs: dict[int, tuple[Any, Any]], undo: list[Callable[[], None]]) -> None:
    names = vars(module)
    for name, value in list(names.items()):
        if id(value) in pairs and not name.startswith("__"):
            names[name] = pairs[id(value)][1]
            undo.append(lambda n=name, v=value: names.__setitem__(n, v))  # type: ignore[misc]
        for function in _functions(value, module.__name__):
            _exchange_defaults(function, pairs, undo)


def _functions(value: Any, module: str) -> list[FunctionType]:
    """The functions behind a module's name: itself, or those of a class."""
    if getattr(value, "__module__", None) != module:
        return []
    if isinstance(value, FunctionType):
        return [value]
    return [one for one in vars(value).values() if isinstance(one, FunctionType)] if isinstance(value, type) else []


def _exchange_defaults(
    function: FunctionType, pairs: dict[int, tuple[Any, Any]], undo: list[Callable[[], None]]
) -> None:
    positional, named = function.__defaults__, function.__kwdefaults__
    if positional and any(id(value) in pairs for value in positional):
        function.__defaults__ = tuple(pairs[id(v)][1] if id(v) in pairs else v for v in positional)
        undo.append(lambda: setattr(function, "__defaults__", positional))
    if named and any(id(value) in pairs for value in named.values()):
        function.__kwdefaults__ = {n: pairs[id(v)][1] if id(v) in pairs else v for n, v in named.items()}
        undo.append(lambda: setattr(function, "__kwdefaults__", named))
