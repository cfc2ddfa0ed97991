"""Whether a Redis may drop keys by itself: what `maxmemory-policy` says, on every server that takes writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from leftfold.errors import ConfigurationError
from leftfold.redis.failures import translated
from leftfold.redis.packing import packed
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import topology_of
from leftfold.redis.wire import Wire

__all__ = ["policy_in", "refuse_eviction"]

_EVICTS = "allkeys-"
"""How the policies begin that evict keys without a time to live, which all keys of views are."""

_ASKED = (packed(b"CONFIG", b"GET", b"maxmemory-policy"), packed(b"INFO", b"memory"))
_IN_INFO = re.compile(rb"^maxmemory_policy:(\S+)", re.MULTILINE)


def refuse_eviction(settings: RedisSettings) -> str:
    """The `maxmemory-policy` of the servers, sorted, with commas; '' when they do not say.

    Raises:
        ConfigurationError: one evicts keys of any kind: rows would be missing, and nothing could notice.
        InfrastructureError: a server cannot be reached.
    """
    policies: set[str] = set()
    with translated(settings):
        for server in topology_of(settings).hearers():
            policy = _policy(server)
            if policy.startswith(_EVICTS):
                at = f"-s {server.socket_path}" if server.socket_path else f"-h {server.host} -p {server.port}"
                raise ConfigurationError(
                    f"redis at {server.address} has maxmemory-policy {policy}, which drops rows of views unnoticed; "
                    f"set it in redis.conf or type: redis-cli {at} config set maxmemory-policy noeviction"
                )
            policies.add(policy)
    return ", ".join(sorted(filter(None, policies)))


def _policy(server: RedisSettings) -> str:
    wire = Wire(server)
    try:
        return policy_in(wire.exchange(_ASKED))
    finally:
        wire.close()


def policy_in(replies: Sequence[Any]) -> str:
    """The policy, by CONFIG where that is allowed, else by INFO; '' where both are refused."""
    config, info = replies
    if isinstance(config, list) and len(config) == 2:
        return str(config[1].decode())
    found = _IN_INFO.search(info) if isinstance(info, bytes) else None
    return found[1].decode() if found else ""
