"""Settings of Redis: the URL of a server, a master behind sentinels or a cluster, and its timeouts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qs, quote, unquote, urlsplit

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from leftfold.errors import ConfigurationError

__all__ = ["Node", "RedisSettings"]


Kind: TypeAlias = Literal["server", "sentinel", "cluster"]
Node: TypeAlias = tuple[str, int]

SHAPES = (
    "redis://[user:password@]host[:6379][/0], unix:///path/to/socket (db=0 in its query), "
    "redis+sentinel://[user:password@]host[:26379][,host…]/service[/0], "
    "redis+cluster://[user:password@]host[:6379][,host…], or rediss… instead of redis… for TLS"
)
_PORTS = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_SEVERAL = re.compile(r"(rediss?)\+(sentinel|cluster)://(?:([^@/?#]*)@)?([^@/?#]+)(/[^?#]*)?")
_NODE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:,\s]+)(?::(\d{1,5}))?")
_SENTINEL_PATH = re.compile(r"/([^/]+)(?:/(\d*))?")


@dataclass(frozen=True)
class RedisUrl:
    """A Redis URL taken apart.

    Args:
        plain: the URL without its password.
        nodes: the server, or some of the sentinels or of the cluster's nodes; none for a Unix socket.
        service: the sentinels' name for the master.
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
            ValueError: it has none of the accepted forms; the message does not repeat it, for it may hold a password.
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
    is_socket = bool(split.path) and re.fullmatch(r"(db=\d+)?", split.query) is not None
    is_server = bool(split.hostname) and not split.query and re.fullmatch(r"/?\d*", split.path) is not None
    if not (is_socket if local else is_server) or split.port == 0:
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


class RedisSettings(BaseSettings):
    """Redis settings; a password in the URL is moved into `password`, so that no message shows it.

    Args:
        url: one server, a master behind sentinels, or a cluster; `LEFTFOLD_REDIS_URL`.
            `redis://host:6379/0`, `unix:///path?db=0`, `redis+sentinel://host:26379,host2:26379/service/0`,
            `redis+cluster://host:6379,host2:6379`, or with `rediss` instead of `redis` for TLS to all of them.
        password: of the servers, instead of one in the URL; `LEFTFOLD_REDIS_PASSWORD`.
        sentinel_username, sentinel_password: of the sentinels themselves, where they require a login.
        ca_file: certificates to trust instead of the system's, for `rediss`.
        connect_timeout, timeout: seconds for a connection, and for a reply on it.
        connections: connections per server and process for threads; when all are in use, further queries wait.
        history: how many flushes with changes each bucket keeps for `watch`; `LEFTFOLD_REDIS_HISTORY`.
        advice: the hint in messages when the one server does not answer; it depends on how it is started.
    """

    model_config = SettingsConfigDict(
        env_prefix="LEFTFOLD_REDIS_", env_ignore_empty=True, frozen=True, extra="ignore", hide_input_in_errors=True
    )

    url: str = "redis://127.0.0.1:6379/0"
    password: SecretStr | None = None
    sentinel_username: str | None = None
    sentinel_password: SecretStr | None = None
    ca_file: Path | None = None
    connect_timeout: float = Field(default=2.0, gt=0)
    timeout: float = Field(default=10.0, gt=0)
    connections: int = Field(default=64, gt=0)
    history: int = Field(default=1000, gt=0)
    advice: str = "is the address right, and does it run?"

    @model_validator(mode="before")
    @classmethod
    def _move_password(cls, data: Any) -> Any:
        """Moves the password out of the URL and checks the rest."""
        if not isinstance(data, dict) or "url" not in data:
            return data
        url = RedisUrl.parse(str(data["url"]))
        return {**data, "url": url.plain, "password": data.get("password") or url.password}

    @model_validator(mode="after")
    def _check_ca_file(self) -> RedisSettings:
        if self.ca_file is not None and not self.encrypted:
            raise ConfigurationError(
                "ca_file is set but the Redis URL does not encrypt; begin it with rediss instead of redis, or leave "
                "ca_file out if the network may read everything"
            )
        return self

    @property
    def kind(self) -> Kind:
        """Whether this is one server, a master behind sentinels or a cluster."""
        return self._parts.kind

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The hosts and ports in the URL: the server, sentinels, or nodes of the cluster."""
        return self._parts.nodes

    @property
    def service(self) -> str:
        """The sentinels' name for the master; '' without sentinels."""
        return self._parts.service

    @property
    def host(self) -> str:
        """The server's host name or address, '' for a Unix socket."""
        return self.nodes[0][0] if self.nodes else ""

    @property
    def port(self) -> int:
        """The server's port."""
        return self.nodes[0][1] if self.nodes else 6379

    @property
    def username(self) -> str | None:
        """The user to log in as; None is the server's default user."""
        return self._parts.username

    @property
    def database(self) -> int:
        """The number of the database on the server."""
        return self._parts.database

    @property
    def socket_path(self) -> str | None:
        """The path of the Unix socket, None for TCP."""
        return self._parts.socket_path

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self._parts.encrypted

    @property
    def address(self) -> str:
        """The server's address in messages; never holds a password."""
        places = ",".join(_netloc(node) for node in self.nodes)
        match self.kind:
            case "sentinel":
                return f"{self.service} (sentinels {places})"
            case "cluster":
                return f"{places} (cluster)"
            case "server":
                return self.socket_path or f"{self.host}:{self.port}"

    def at(self, node: Node) -> RedisSettings:
        """The settings of one server among several."""
        user = f"{quote(self.username, safe='')}@" if self.username else ""
        return self.model_copy(update={"url": f"{self._scheme}://{user}{_netloc(node)}/{self.database}"})

    def sentinel_at(self, node: Node) -> RedisSettings:
        """The settings of one sentinel, which has its own login."""
        user = f"{quote(self.sentinel_username, safe='')}@" if self.sentinel_username else ""
        url = f"{self._scheme}://{user}{_netloc(node)}/0"
        return self.model_copy(update={"url": url, "password": self.sentinel_password})

    @property
    def _scheme(self) -> str:
        return "rediss" if self.encrypted else "redis"

    @property
    def _parts(self) -> RedisUrl:
        return RedisUrl.parse(self.url)


def _netloc(node: Node) -> str:
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
