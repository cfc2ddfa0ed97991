"""Users' functions are checked by any number of threads at once."""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from leftfold.model import typing
from leftfold.model.typing import missing_arms
from tests.domains.shop import Added, Opened

LONG = (
    """
class Opened: ...
class Closed: ...
def count(event):
    match event:
        case Opened():
            return 1
"""
    + 200 * "    event = [event, {1: (2, 3)}]\n"
)


class Collected:
    """Garbage that lets another thread run while it is collected."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        time.sleep(0)


def test_one_thread_at_a_time_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[bool] = []
    with monkeypatch.context() as patched:
        patched.setattr("leftfold.model.typing.ast.parse", lambda text: locked.append(typing._parsing.locked()))
        typing.parse_source("1")
    assert locked == [True]


def test_threads_may_define_deciders_at_once(tmp_path: Path) -> None:
    """CPython 3.11 fails when collecting garbage lets a thread parse while another one does."""
    file = tmp_path / "long.py"
    file.write_text(LONG, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("long", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    count: Callable[..., object] = module.count

    def define(_: int) -> list[tuple[str, ...]]:
        classes = module.Opened, module.Closed
        return [([Collected() for _ in range(30)], missing_arms(count, 0, classes))[1] for _ in range(20)]

    before = gc.get_threshold()
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(define, range(4))) == [[("Closed",)] * 20] * 4
    finally:
        gc.set_threshold(*before)


@contextmanager
def logged() -> Iterator[None]:
    yield


@logged()  # the function that it makes has the globals of contextlib
def decorated(event: object) -> int:
    match event:
        case Opened():
            return 1
    return 0


@cache
def cached(event: object) -> int:
    match event:
        case Opened():
            return 1
    return 0


class Counter:
    """A method of it is decorated after it was bound."""

    def count(self, event: object) -> int:
        match event:
            case Opened():
                return 1
        return 0


def with_its_own_import(event: object) -> int:
    from tests.domains.shop import Opened as Begun

    match event:
        case Begun():
            return 1
    return 0


@pytest.mark.parametrize("function", [decorated, cached, Counter().count, logged()(Counter().count)])
def test_the_arms_of_a_decorated_function_are_those_of_the_function_behind(function: Callable[..., int]) -> None:
    assert missing_arms(function, 0, [Opened]) == ()
    assert missing_arms(function, 0, [Opened, Added]) == ("Added",)


def test_a_function_that_imports_the_classes_of_its_arms_itself_counts_as_complete() -> None:
    assert missing_arms(with_its_own_import, 0, [Opened, Added]) == ()
