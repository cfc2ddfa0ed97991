"""Nothing that is simulated escapes: no real clock, thread, chance or network is within reach of its modules."""

from __future__ import annotations

import ast
import importlib
import inspect
import threading
import time
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pytest

from leftfold.kafka.worker import transactions as watchdog
from leftfold.testing.simulation import projections, takeover
from leftfold.testing.simulation.environment import SimulatedWorld

_STANDS_IN = {
    "asyncio", "atexit", "os", "queue", "random", "secrets", "select", "socket", "sys", "threading", "time",
    "uuid",
    "confluent_kafka", "confluent_kafka.admin",
}  # fmt: skip
"""Imported modules with a stand-in, or of which single names have one."""
_HARMLESS = {
    "__future__", "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal", "difflib",
    "enum", "functools", "hashlib", "heapq", "hiredis", "itertools", "json", "leftfold", "logging", "math", "operator",
    "gc", "pathlib", "shlex", "sysconfig",
    "pydantic", "pydantic_core", "pydantic_settings", "re", "redis", "ssl", "struct", "traceback", "types", "typing",
    "typing_extensions", "urllib", "warnings", "zlib",
}  # fmt: skip
"""What neither waits nor draws; redis-py is taken over with its loaded modules, and nothing is encrypted in a world."""
_NOT_YET = {
    "leftfold.kafka.administration.cluster": {"concurrent.futures"},
    "leftfold.runtime.lifecycle": {"signal"},
    "leftfold.runtime.supervisor": {"signal", "subprocess"},
}
"""What is left real, and why: futures come from the simulated admin client; of the
supervisor only its pauses are used.
"""


_REAL = {
    "leftfold.compatibility.fold_hash",
    "leftfold.model.typing",
    "leftfold.ports.instruments",
    "leftfold.safety",
}
"""Modules below the simulated ones that ask for the time, the system or threads all the same: what reads classes and
code, guards a cache, or measures and changes nothing.
"""
_BELOW = ("leftfold.compatibility", "leftfold.errors", "leftfold.model", "leftfold.ports", "leftfold.safety")
_ASKED = ("time", "secrets", "os", "threading", "queue", "uuid", "atexit", "sys")
_NAMES = {
    "os.environ", "os.write", "queue.Empty", "sys.byteorder", "sys.maxsize", "threading.get_ident",
    "uuid.NAMESPACE_URL", "uuid.UUID", "uuid.uuid5",
}  # fmt: skip
"""What modules with a stand-in hold that is neither clock nor chance."""


def _simulated() -> list[ModuleType]:
    return takeover.simulated((*takeover.PACKAGES, *projections.PACKAGES))


@cache
def _nodes(module: ModuleType) -> list[ast.AST]:
    return list(ast.walk(ast.parse(inspect.getsource(module))))


@pytest.fixture(scope="module", autouse=True)
def _forget_nodes() -> Iterator[None]:
    yield
    _nodes.cache_clear()


def _imported(module: ModuleType) -> set[str]:
    found: set[str] = set()
    for node in _nodes(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


@pytest.mark.parametrize("module", _simulated(), ids=lambda module: module.__name__)
def test_a_simulated_module_imports_nothing_that_is_real(module: ModuleType) -> None:
    imported = _imported(module)
    left = {name for name in imported if name not in _STANDS_IN and name.split(".")[0] not in _HARMLESS}
    assert left <= _NOT_YET.get(module.__name__, set())


def test_what_lies_below_simulated_modules_is_simulated_too_or_harmless() -> None:
    found = {module.__name__: module for module in _simulated()}
    simulated, waiting = set(found), list(found)
    while waiting:
        for name in _imported(found[waiting.pop()]):
            if name.startswith(_BELOW) and name not in found:
                found[name] = importlib.import_module(name)
                waiting.append(name)
    asks = {name for name, module in found.items() if name not in simulated and _asks(module)}
    assert asks == _REAL


def _asks(module: ModuleType) -> bool:
    """Whether a module imports what has a stand-in, except for the type UUID."""
    imports = [one for one in _nodes(module) if isinstance(one, ast.Import)]
    froms = [one for one in _nodes(module) if isinstance(one, ast.ImportFrom)]
    names = {alias.name for one in imports for alias in one.names}
    names |= {one.module or "" for one in froms if {f"{one.module}.{a.name}" for a in one.names} - _NAMES}
    return bool(names & _STANDS_IN)


@pytest.mark.parametrize("module", _simulated(), ids=lambda module: module.__name__)
def test_a_simulated_module_uses_no_name_of_a_clock_or_of_chance_that_has_no_stand_in(module: ModuleType) -> None:
    nodes = _nodes(module)
    stand_ins = {real.__name__: stand_in for real, stand_in in takeover._stand_ins() if isinstance(real, ModuleType)}
    known = {name for one in nodes if isinstance(one, ast.Import) for name in (a.name for a in one.names)}
    used = {
        f"{node.value.id}.{node.attr}"
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known
    }
    replaced = [real for real, _ in [*takeover._stand_ins(), *projections.NETWORK]]
    for one in (node for node in nodes if isinstance(node, ast.ImportFrom) and node.module in _ASKED):
        for alias in one.names:
            taken = getattr(importlib.import_module(one.module or ""), alias.name)
            assert f"{one.module}.{alias.name}" in _NAMES or any(taken is real for real in replaced), alias.name
    for name in used - _NAMES:
        place, _, attribute = name.partition(".")
        is_of_module = place in _ASKED and hasattr(importlib.import_module(place), attribute)
        assert not is_of_module or (place in stand_ins and attribute in stand_ins[place]._names), f"{name} is real"
        assert name not in ("random.Random", "random.SystemRandom")


@pytest.mark.parametrize("module", _simulated(), ids=lambda module: module.__name__)
def test_a_simulated_module_asks_no_other_clock(module: ModuleType) -> None:
    nodes = _nodes(module)
    calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    assert not {call for call in calls if call.rpartition(".")[2] in ("utcnow", "today")}
    assert "datetime.now" not in calls


def test_within_the_block_nothing_real_is_left_and_afterwards_everything_is_back() -> None:
    real = [thing for thing, _ in [*takeover._stand_ins(), *projections.NETWORK]]
    before = {(m.__name__, name): value for m in _simulated() for name, value in vars(m).items()}
    with takeover.taken_over((*takeover.PACKAGES, *projections.PACKAGES), projections.NETWORK):
        for module in _simulated():
            left = {name for name, value in vars(module).items() if any(value is thing for thing in real)}
            assert not left, f"{module.__name__} still has {left}"
            for function in (f for value in vars(module).values() for f in takeover._functions(value, module.__name__)):
                defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
                assert not any(value is thing for value in defaults for thing in real), function.__qualname__
    after = {(m.__name__, name): value for m in _simulated() for name, value in vars(m).items()}
    assert all(after[place] is value for place, value in before.items())


def test_threads_beside_the_simulation_get_the_real_things() -> None:
    """An App that a session of tests keeps at work still works while schedules run."""
    seen: dict[str, list[bool]] = {}

    def look(where: str) -> None:
        used: Any = watchdog
        started = used.threading.Thread(target=lambda: None)
        seen[where] = [isinstance(started, threading.Thread), abs(used.time.monotonic() - time.monotonic()) < 60]

    def within() -> None:
        neighbour = threading.Thread(target=look, args=["beside"])
        neighbour.start()
        neighbour.join()
        look("within")

    world = SimulatedWorld(1)
    with takeover.taken_over(), world.activated():
        world.start("one", within)
        world.run(lambda: len(seen) == 2, 1.0)
    assert seen == {"beside": [True, True], "within": [False, False]}
