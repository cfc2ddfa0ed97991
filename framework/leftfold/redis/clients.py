"""Clients for everything that is not a flush, whatever the URL speaks of."""

from __future__ import annotations

from leftfold.redis.commands import Client
from leftfold.redis.multiplexer import Multiplexer
from leftfold.redis.pools import open_server
from leftfold.redis.routed import RoutedClient
from leftfold.redis.routed_async import RoutedAsyncClient
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import Topology, topology_of
from leftfold.redis.wording import Asker

__all__ = ["open_asker", "open_client"]


def open_client(settings: RedisSettings, topology: Topology | None = None) -> Client:
    """A client for threads; more readers than connections wait for one.

    Args:
        topology: one to share what is found out with; made when there is none.
    """
    if settings.kind == "server":
        return open_server(settings)
    return RoutedClient(topology or topology_of(settings))


def open_asker(settings: RedisSettings, topology: Topology) -> Asker:
    """What asks for the coroutines of the running event loop; it connects when it is asked."""
    return RoutedAsyncClient(topology) if topology.spread else Multiplexer(settings, topology)
