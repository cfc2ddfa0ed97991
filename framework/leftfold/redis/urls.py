"""What a Redis URL may look like: one server, a master that sentinels watch, or a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["SHAPES", "Kind", "Node", "RedisUrl"]

Kind: TypeAlias = Literal["server", "sentinel", "cluster"]
Node: TypeAlias = tuple[str, int]

SHAPES = (
    "redis://[user:password@]host[:6379][/0], unix:///path/to/socket[?db=0], "
    "redis+sentinel://[user:password@]host[:26379][,host…]/service[/0], "
    "redis+cluster://[user:password@]host[:6379][,host…], or rediss… instead of redis… for TLS"
)
_PORTS = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_SEVERAL = re.compile(r"(rediss?)\+(sentinel|cluster)://(?:([^@/?#]*)@)?([^@/?#]+)(/[^?#]*)?")
_NODE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:,\s]+)(?::(\d{1,5}))?")
_SENTINEL_PATH = re.compile(r"/([^/]+)(?:/(\d*))?")


@dataclass(frozen=True)
class RedisUrl:
    """A URL taken apart.

    Args:
        plain: the URL without its password.
        nodes: the server, or some of the sentinels or of the cluster's nodes; none for a socket in the file system.
        service: what the sentinels call the master.
    """

    plain: str
    kind: Kind
    encrypted: bool
    nodes: tuple[Node, ...]
    username: str | None
    password: str | None
    database: int = 0
    service: str = ""
    socket_path: str | None = None

    @classmethod
    def parse(cls, url: str) -> RedisUrl:
        """Takes a URL apart.

        Raises:
            ValueError: it has none of the shapes; the message does not repeat it, for it may hold a password.
        """
        try:
            found = _several(url) if "+" in url.partition("://")[0] else _single(url)
        except ValueError:
            found = None
        if found is None:
            raise ValueError(f"the Redis URL must look like {SHAPES}, with special characters in it percent-encoded")
        return found


def _single(url: str) -> RedisUrl | None:
    split = urlsplit(url)
    if split.fragment or split.scheme not in ("redis", "rediss", "unix"):
        return None
    local = split.scheme == "unix"
    if not (_is_socket(split.path, split.query) if local else _is_server(split.hostname, split.path, split.query)):
        return None
    if split.port == 0:
        return None
    login, _, place = split.netloc.rpartition("@")
    user = login.partition(":")[0]
    return RedisUrl(
        plain=split._replace(netloc=f"{user}@{place}" if user else place).geturl(),
        kind="server",
        encrypted=split.scheme == "rediss",
        nodes=() if local else ((split.hostname or "", split.port or _PORTS["server"]),),
        username=unquote(user) or None,
        password=unquote(split.password) if split.password else None,
        database=int(parse_qs(split.query).get("db", ["0"])[0]) if local else int(split.path.strip("/") or 0),
        socket_path=unquote(split.path) if local else None,
    )


def _is_socket(path: str, query: str) -> bool:
    return bool(path) and re.fullmatch(r"(db=\d+)?", query) is not None


def _is_server(host: str | None, path: str, query: str) -> bool:
    return bool(host) and not query and re.fullmatch(r"/?\d*", path) is not None


def _several(url: str) -> RedisUrl | None:
    shape = _SEVERAL.fullmatch(url)
    if shape is None:
        return None
    scheme, kind, login, hosts, path = shape.groups()
    place = _SENTINEL_PATH.fullmatch(path or "") if kind == "sentinel" else None
    if place is None if kind == "sentinel" else path not in (None, "/", "/0"):
        return None
    user, _, password = (login or "").partition(":")
    return RedisUrl(
        plain=f"{scheme}+{kind}://{user + '@' if user else ''}{hosts}{path or ''}",
        kind="sentinel" if kind == "sentinel" else "cluster",
        encrypted=scheme == "rediss",
        nodes=tuple(_nodes(hosts, _PORTS[kind])),
        username=unquote(user) or None,
        password=unquote(password) or None,
        database=int(place[2] or 0) if place else 0,
        service=unquote(place[1]) if place else "",
    )


def _nodes(hosts: str, default: int) -> Iterator[Node]:
    for text in hosts.split(","):
        shape = _NODE.fullmatch(text)
        port = int(shape[2] or default) if shape else 0
        if shape is None or not 0 < port < 65536:
            raise ValueError("not a host and port")
        yield shape[1].strip("[]"), port
