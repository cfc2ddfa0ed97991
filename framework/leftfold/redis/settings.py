"""Where Redis is and how long to wait for it; the only reader of the environment in this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from leftfold.errors import ConfigurationError
from leftfold.redis.urls import Kind, Node, RedisUrl

__all__ = ["RedisSettings"]


class RedisSettings(BaseSettings):
    """How to reach Redis; a password in the URL is moved into `password`, so that no message shows it.

    Args:
        url: one server, a master behind sentinels, or a cluster; `LEFTFOLD_REDIS_URL`.
            `redis://host:6379/0`, `unix:///path?db=0`, `redis+sentinel://host:26379,host2:26379/service/0`,
            `redis+cluster://host:6379,host2:6379`, or with `rediss` instead of `redis` for TLS to all of them.
        password: of the servers, instead of one in the URL; `LEFTFOLD_REDIS_PASSWORD`.
        sentinel_username, sentinel_password: of the sentinels themselves, where they want to be logged in to.
        ca_file: certificates to trust instead of the system's, for `rediss`.
        connect_timeout, timeout: seconds for a connection, and for a reply on it.
        connections: how many threads are served at a time per server and process, in a cluster also how many questions
            per event loop; more of them wait.
        history: how many flushes with changes each bucket remembers for `watch`; `LEFTFOLD_REDIS_HISTORY`.
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

    @model_validator(mode="before")
    @classmethod
    def _move_password(cls, data: Any) -> Any:
        """Takes the password out of the URL and checks what is left."""
        if not isinstance(data, dict) or "url" not in data:
            return data
        url = RedisUrl.parse(str(data["url"]))
        return {**data, "url": url.plain, "password": data.get("password") or url.password}

    @model_validator(mode="after")
    def _encrypts_what_is_to_be_checked(self) -> RedisSettings:
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
        """What the sentinels call the master; '' where there are none."""
        return self._parts.service

    @property
    def host(self) -> str:
        """The server's name or number, '' for a socket in the file system."""
        return self.nodes[0][0] if self.nodes else ""

    @property
    def port(self) -> int:
        """The server's port."""
        return self.nodes[0][1] if self.nodes else 6379

    @property
    def username(self) -> str | None:
        """Whom to log in as; None is the server's default user."""
        return self._parts.username

    @property
    def database(self) -> int:
        """The number of the database in the server."""
        return self._parts.database

    @property
    def socket_path(self) -> str | None:
        """The socket in the file system, if that is where the server is."""
        return self._parts.socket_path

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self._parts.encrypted

    @property
    def address(self) -> str:
        """What messages call it; never holds a password."""
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
        """The settings of one sentinel, which has a login of its own."""
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
