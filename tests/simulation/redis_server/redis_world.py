"""A world with one simulated Redis, in whose processes the shipped adapter runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.testing.simulation import projections, takeover
from leftfold.testing.simulation.environment import SimulatedWorld
from leftfold.testing.simulation.network import Network
from leftfold.testing.simulation.redis_server import RedisServer

__all__ = ["RedisWorld", "StoreInWorld", "redis_world"]

T = TypeVar("T")
_SECONDS = 600.0
_START = 1_750_000_000.0


class RedisWorld:
    """A world, its network, and a Redis that listens in it.

    Args:
        seed: decides everything that is left open.
    """

    def __init__(self, seed: int) -> None:
        self.world = SimulatedWorld(seed)
        self.network = Network(self.world)
        self.redis = RedisServer(lambda: _START + self.world.scheduler.now)
        self.host = self.network.listen(("redis", 6379), self.redis)
        self.settings = RedisSettings(url="redis://redis:6379/0", timeout=2.0)

    def store(self) -> RedisViewStore:
        """The shipped adapter, with a short patience."""
        return RedisViewStore(self.settings)

    def do(self, work: Callable[[], T], process: str = "client") -> T:
        """Does something in a simulated process, and lets time pass until it is done."""
        return self.together({process: work})[process]

    def together(self, works: dict[str, Callable[[], T]]) -> dict[str, T]:
        """Does several things at once, each in a process of its own."""
        results: dict[str, T] = {}

        def finish(name: str, work: Callable[[], T]) -> None:
            results[name] = work()

        tasks = [self.world.start(name, partial(finish, name, work)) for name, work in works.items()]
        assert self.world.run(lambda: all(task.is_done for task in tasks), _SECONDS), tasks
        for task in tasks:
            if task.error is not None:
                raise task.error
        return results

    def pass_time(self, seconds: float) -> None:
        """Lets time pass."""
        self.world.run(lambda: False, seconds)


class StoreInWorld:
    """The shipped store, each call of which is made in a simulated process, unless one runs."""

    def __init__(self, world: RedisWorld) -> None:
        self.world = world
        self._store = world.do(world.store)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(self._call, found) if callable(found) else found

    def _call(self, method: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if self.world.world.scheduler.current is not None:
            return method(*args, **more)
        result = self.world.do(lambda: method(*args, **more))
        if hasattr(result, "landed"):
            return SimpleNamespace(landed=partial(self._call, result.landed))
        return result


@contextmanager
def redis_world(seed: int) -> Iterator[RedisWorld]:
    """A world that is active, and whose time and sockets the adapter and redis-py use, within the block."""
    found = RedisWorld(seed)
    packages = (*takeover.PACKAGES, *projections.PACKAGES, "leftfold.testing.contracts")
    with (
        takeover.taken_over(packages, projections.NETWORK, projections.LIBRARIES),
        found.world.activated(),
    ):
        yield found
        found.world.close()
