"""Clients for everything that is not a flush, whatever the URL speaks of."""

from __future__ import annotations

from leftfold.redis.commands import AsyncClient, Client
from leftfold.redis.pools import open_async_server, open_server
from leftfold.redis.routed import RoutedClient
from leftfold.redis.routed_async import RoutedAsyncClient
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import Topology, topology_of

__all__ = ["open_async_client", "open_client"]


def open_client(settings: RedisSettings, topology: Topology | None = None) -> Client:
    """A client for threads; more readers than connections wait for one.

    Args:
        topology: one to share what is found out with; made when there is none.
    """
    if settings.kind == "server":
        return open_server(settings)
    return RoutedClient(topology or topology_of(settings))


def open_async_client(settings: RedisSettings, topology: Topology | None = None) -> AsyncClient:
    """A client for the running event loop."""
    if settings.kind == "server":
        return open_async_server(settings)
    return RoutedAsyncClient(topology or topology_of(settings))
