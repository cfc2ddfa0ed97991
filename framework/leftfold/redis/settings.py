"""Where Redis is and how long to wait for it; the only reader of the environment in this package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["RedisSettings"]

_SHAPES = "redis://[user:password@]host[:6379][/0], rediss://… for TLS, or unix:///path/to/socket[?db=0]"
_DATABASE = re.compile(r"/?(\d*)")


class RedisSettings(BaseSettings):
    """How to reach one Redis server; a password in the URL is moved into `password`, so that no message shows it.

    Args:
        url: `redis://host:6379/0`, `rediss://…` for TLS, or `unix:///path?db=0`; `LEFTFOLD_REDIS_URL`.
        password: instead of one in the URL; `LEFTFOLD_REDIS_PASSWORD`.
        ca_file: certificates to trust instead of the system's, for `rediss://`.
        connect_timeout, timeout: seconds for a connection, and for a reply on it.
        connections: how many threads are served at a time per process; more of them wait.
        history: how many flushes with changes each bucket remembers for `watch`; `LEFTFOLD_REDIS_HISTORY`.
    """

    model_config = SettingsConfigDict(
        env_prefix="LEFTFOLD_REDIS_", env_ignore_empty=True, frozen=True, extra="ignore", hide_input_in_errors=True
    )

    url: str = "redis://127.0.0.1:6379/0"
    password: SecretStr | None = None
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
        url, password = _without_password(str(data["url"]))
        return {**data, "url": url, "password": data.get("password") or password}

    @property
    def host(self) -> str:
        """The server's name or number, '' for a socket in the file system."""
        return self._split.hostname or ""

    @property
    def port(self) -> int:
        """The server's port."""
        return self._split.port or 6379

    @property
    def username(self) -> str | None:
        """Whom to log in as; None is the server's default user."""
        return unquote(self._split.username) if self._split.username else None

    @property
    def database(self) -> int:
        """The number of the database in the server."""
        if self.socket_path is not None:
            return int(parse_qs(self._split.query).get("db", ["0"])[0])
        return int(self._split.path.strip("/") or 0)

    @property
    def socket_path(self) -> str | None:
        """The socket in the file system, if that is where the server is."""
        return unquote(self._split.path) if self._split.scheme == "unix" else None

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self._split.scheme == "rediss"

    @property
    def address(self) -> str:
        """What messages call the server; never holds a password."""
        return self.socket_path or f"{self.host}:{self.port}"

    @property
    def _split(self) -> SplitResult:
        return urlsplit(self.url)


def _without_password(url: str) -> tuple[str, str | None]:
    try:
        split = urlsplit(url)
        valid = _is_valid(split)
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"the Redis URL must look like {_SHAPES}, with special characters in it percent-encoded")
    login, _, place = split.netloc.rpartition("@")
    user = login.partition(":")[0]
    netloc = f"{user}@{place}" if user else place
    return split._replace(netloc=netloc).geturl(), unquote(split.password) if split.password else None


def _is_valid(split: SplitResult) -> bool:
    if split.fragment:
        return False
    if split.scheme == "unix":
        return bool(split.path) and re.fullmatch(r"(db=\d+)?", split.query) is not None
    known = split.scheme in ("redis", "rediss") and split.hostname and split.port != 0
    return bool(known) and not split.query and _DATABASE.fullmatch(split.path) is not None
