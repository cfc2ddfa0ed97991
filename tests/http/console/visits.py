"""Visits of NiceGUI's simulated user to the console of a kiosk in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nicegui.testing import User
from nicegui.testing.user_simulation import user_simulation

from leftfold.http.console.application import frame
from leftfold.http.console.state import Console
from leftfold.memory import World
from tests.http.console.kiosk import app

__all__ = ["console_on", "visited"]


def console_on(world: World, *, acts: bool = False) -> Console:
    """A console of the kiosk in memory."""
    return Console({"kiosk:app": app}, {"kiosk": world}, None, may_act=lambda who: acts)


def visited(console: Console, visit: Callable[[User], Awaitable[None]]) -> None:
    """Has a simulated user visit a console."""

    async def run() -> None:
        async with user_simulation(frame(console)) as user:
            await visit(user)

    asyncio.run(run())
