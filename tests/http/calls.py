"""Calls to a gateway of the shop in memory, the problems it answers with, and connections that are other in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
from fastapi import FastAPI

from leftfold import App, memory
from leftfold.http import gateway
from leftfold.http.feeds import Frame, frame
from leftfold.memory import World
from leftfold.model.position import Position
from tests.domains.shop import app as shop

__all__ = ["ADD", "BASKETS", "JSON", "NDJSON", "NOW", "OPEN", "OPEN_PATH", "PROBLEM", "Broken", "Calls", "Rewrites",
           "StandIn", "called", "check_out", "client_of", "open_basket", "problem_in"]  # fmt: skip

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BASKETS = "/commands/baskets"
OPEN_PATH = f"{BASKETS}/Open"
OPEN, ADD = {"basket_id": "b", "household": "h"}, {"basket_id": "b", "product": "milk"}
JSON, NDJSON = {"Content-Type": "application/json"}, {"Content-Type": "application/x-ndjson"}
PROBLEM = "application/problem+json"

Calls = Callable[[httpx.AsyncClient], Awaitable[None]]


def called(calls: Calls, make: Callable[[World], FastAPI] | None = None, *, app: App = shop, **options: Any) -> None:
    """Makes calls to a gateway of an App in memory, with these options, or to what is made of the App's world."""

    async def run(world: World) -> None:
        async with client_of(make(world) if make else gateway([(app, world)], **options)) as http:
            await calls(http)

    with memory(app, now=NOW) as world:
        asyncio.run(run(world))


@asynccontextmanager
async def client_of(api: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application in this process."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api, **options), base_url="http://test") as http:
        yield http


async def open_basket(http: httpx.AsyncClient, key: str, household: str = "h") -> httpx.Response:
    """Opens a basket."""
    return await http.post(OPEN_PATH, json={"basket_id": key, "household": household})


async def check_out(http: httpx.AsyncClient, key: str, household: str) -> None:
    """Opens a basket and checks it out."""
    for name, fields in (("Open", {"household": household}), ("CheckOut", {})):
        sent = await http.post(f"{BASKETS}/{name}", json={"basket_id": key, **fields})
        assert sent.status_code == 200, sent.text


def problem_in(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem in an answer of this status."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["title"]
    return found


class StandIn:
    """A connection, a client or a reader, of which some parts are others."""

    def __init__(self, real: Any, **others: Any) -> None:
        self._real = real
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Rewrites:
    """A source of changes at one position, from a number on; `then` follow just behind its first read."""

    position = Position.at("n", 0, 1)

    def __init__(self, rows: list[int], number: int, *then: int) -> None:
        self.rows, self.number, self.then = rows, number, then

    async def read(self, timeout: float) -> list[Frame]:
        await asyncio.sleep(min(timeout, 0.01))
        found, self.number = self.rows[self.number :], len(self.rows)
        self.rows += self.then
        self.then = ()
        return [frame("k", "change", self.position, row) for row in found]

    async def close(self) -> None:
        return None


class Broken:
    """A connection that raises an error whatever it is asked for."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def client(self) -> Any:
        raise self._error

    @property
    def views(self) -> Any:
        raise self._error

    def stream(self, category: str, key: str) -> Any:
        raise self._error

    def log_reader(self) -> Any:
        raise self._error
