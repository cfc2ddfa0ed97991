"""The addresses of running servers, told to everybody who looks into the data directory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from leftfold.local.files import write_whole
from leftfold.local.record import read_record

__all__ = ["Servers", "announce"]


@dataclass(frozen=True)
class Servers:
    """Where the servers of a data directory are: `host:port` and a `redis://` URL, empty if not wanted.

    The URL holds the password of the embedded Redis: give it to clients, but print `veiled(servers.redis)`.
    """

    kafka: str
    redis: str = field(repr=False)
    data: Path


def announce(data: Path) -> Servers:
    """Write `servers.json` about the servers that run, which are taken to be ready, and return it."""
    record = read_record(data)
    servers = {} if record is None else {name: record.servers[name] for name in sorted(record.running)}
    addresses = {name: server.address for name, server in servers.items()}
    pids = {name: server.pid for name, server in servers.items()}
    write_whole(data / "servers.json", json.dumps({**addresses, "pids": pids}, indent=2) + "\n")
    return Servers(kafka=addresses.get("kafka", ""), redis=addresses.get("redis", ""), data=data)
