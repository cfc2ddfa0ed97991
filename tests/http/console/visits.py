"""Visits of NiceGUI's simulated user to the console of a kiosk, in memory or on servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from nicegui import ui
from nicegui.testing import User
from nicegui.testing.user_simulation import user_simulation

from leftfold import connect
from leftfold.http.console.application import frame
from leftfold.http.console.console_state import Console
from leftfold.memory import World
from tests.http.console.kiosk import app
from tests.servers import Addresses, patient
from tests.waiting import WAIT_SECONDS

__all__ = ["RETRIES", "console_on", "console_with", "shown", "visited"]

RETRIES = round(10 * WAIT_SECONDS)
"""How often a simulated user looks, every 0.1 s: threads of this process do the work of a page."""


def console_on(world: World, *, acts: bool = False) -> Console:
    """A console of the kiosk in memory."""
    return Console({"kiosk:app": app}, {"kiosk": world}, None, may_act=lambda who: acts)


@contextmanager
def console_with(servers: Addresses, metrics: str = "") -> Iterator[Console]:
    """A console of the kiosk on servers, whose visitors may act."""
    with connect(app, kafka=patient(servers.kafka), redis=servers.redis) as connection:
        addresses = servers.kafka, servers.redis, None
        yield Console({"kiosk:app": app}, {"kiosk": connection}, addresses, may_act=lambda who: True, metrics=metrics)


def shown(user: User) -> str:
    """All HTML of a page."""
    return "".join(str(one.content) for one in user.find(kind=ui.html).elements if isinstance(one, ui.html))


def visited(console: Console, visit: Callable[[User], Awaitable[None]]) -> None:
    """Has a simulated user visit a console."""

    async def run() -> None:
        async with user_simulation(frame(console)) as user:
            await visit(user)

    asyncio.run(run())
