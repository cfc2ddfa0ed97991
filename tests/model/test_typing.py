"""The source of users' functions is read by any number of threads at once."""

from __future__ import annotations

import gc
import inspect
import time
from concurrent.futures import ThreadPoolExecutor

from leftfold.model import typing
from leftfold.model.typing import parse_source


class Collected:
    """Garbage that lets another thread run while it is collected."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        time.sleep(0)


def test_threads_may_define_deciders_at_once() -> None:
    """CPython 3.11 fails when collecting garbage lets a thread parse while another one does."""
    source = inspect.getsource(typing)

    def define(_: int) -> list[int]:
        return [len([*(Collected() for _ in range(30)), parse_source(source)]) for _ in range(10)]

    before = gc.get_threshold()
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(define, range(4))) == [[31] * 10] * 4
    finally:
        gc.set_threshold(*before)
