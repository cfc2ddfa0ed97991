"""Functions that users hand over: callable with what they will be given, and not asynchronous."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from leftfold.errors import ConfigurationError

__all__ = ["check_function"]


def check_function(function: Callable[..., object], where: str, *given: str) -> None:
    """Finds out, before anything runs, that a function cannot be called as it will be.

    Args:
        where: what it is, as in `process checkout: react`. given: what it is called with, in order.

    Raises:
        ConfigurationError: it is no function, takes something else, or is asynchronous: nobody would await it.
    """
    wanted = f"it is called as {where.rpartition(' ')[2]}({', '.join(given)})"
    if not callable(function):
        raise ConfigurationError(f"{where} is {function!r}, which is no function; {wanted}")
    for one in (function, getattr(function, "__call__", None)):  # noqa: B004  # an object may be called, too
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            raise ConfigurationError(f"{where} is async, and nobody would await it; write def instead of async def")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C do not say what they take
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise ConfigurationError(f"{where}: {name} takes {signature}; {wanted}") from error
