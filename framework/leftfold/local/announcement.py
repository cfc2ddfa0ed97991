"""The addresses of running servers, told to everybody who looks into the data directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from leftfold.local.files import write_whole
from leftfold.local.record import read_record
from leftfold.local.secure import secured
from leftfold.rights import ADMIN

__all__ = ["Servers", "announce"]


@dataclass(frozen=True)
class Servers:
    """Where the servers of a data directory are: `host:port` and a `redis://` URL, empty if not wanted.

    The URL holds the password of the embedded Redis: give it to clients, but print `veiled(servers.redis)`. Where the
    servers are secure, `kafka_login` and `redis_login` are further fields of the clients' settings.
    """

    kafka: str
    redis: str = field(repr=False)
    data: Path
    kafka_login: Mapping[str, str] = field(default_factory=dict, repr=False)
    redis_login: Mapping[str, str] = field(default_factory=dict, repr=False)


def announce(data: Path) -> Servers:
    """Write `servers.json` about the servers that run, which are taken to be ready, and return it."""
    record = read_record(data)
    servers = {} if record is None else {name: record.servers[name] for name in sorted(record.running)}
    addresses = {name: server.address for name, server in servers.items()}
    pids = {name: server.pid for name, server in servers.items()}
    kafka, redis = addresses.get("kafka", ""), addresses.pop("redis-tls", addresses.get("redis", ""))
    told = {name: address for name, address in (("kafka", kafka), ("redis", redis)) if address}
    secure, logins = secured(data), dict[str, dict[str, str]]()
    if secure is not None:
        secure.tell(kafka, redis)
        logins = {"kafka_login": secure.login(ADMIN), "redis_login": {"ca_file": str(secure.ca)}}
    write_whole(data / "servers.json", json.dumps({**told, **logins, "pids": pids}, indent=2) + "\n")
    return Servers(kafka=kafka, redis=redis, data=data, **logins)
