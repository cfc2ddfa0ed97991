"""A client that is connected at its first use, on a thread, with one attempt for all requests that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["FirstConnection"]

C = TypeVar("C")


class FirstConnection(Generic[C]):
    """The client of an App for all requests of a gateway, connected when the first one asks for it.

    An attempt may take seconds while servers are down. Requests share it and its error, so that each of them is
    answered in that time, however many there are; the next request tries again.
    """

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._client: C | None = None
        self._attempt: asyncio.Task[C] | None = None

    async def client(self) -> C:
        """The client. Raises LeftfoldError: it cannot be connected."""
        if self._client is not None:
            return self._client
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.ensure_future(asyncio.to_thread(self._connect))
        # A request that is cancelled must not cancel the attempt of the others.
        self._client = await asyncio.shield(self._attempt)
        return self._client
