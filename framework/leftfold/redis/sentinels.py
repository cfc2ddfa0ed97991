"""The master of the moment, by what its sentinels say."""

from __future__ import annotations

from threading import Lock
from typing import Any

import redis

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.redis.failures import refuse_errors
from leftfold.redis.packing import packed
from leftfold.redis.settings import RedisSettings
from leftfold.redis.urls import Node
from leftfold.redis.wire import Dial, Wire, dial

__all__ = ["ROLE", "Sentinels", "why_no_master"]

ROLE = packed(b"ROLE")


class Sentinels:
    """Asks the sentinels who leads, whenever the one that was known fails.

    A majority of them is asked and the latest configuration counts, so that a sentinel which was cut off and knows only
    an earlier master does not decide. Each connection then asks the server itself for its role, as the guidelines for
    Sentinel clients demand: a master that was demoted, or comes back as a replica, must not be read or written.
    """

    spread = False

    def __init__(self, settings: RedisSettings, dial: Dial = dial) -> None:
        self.settings, self._dial = settings, dial
        self._lock = Lock()
        self._master: RedisSettings | None = None

    def server(self, key: bytes) -> RedisSettings:
        """The master."""
        with self._lock:
            if self._master is None:
                self._master = self.settings.at(self._asked())
            return self._master

    def known(self, key: bytes) -> RedisSettings | None:
        """The master as it was known last."""
        return self._master

    def wire(self, key: bytes, dial: Dial = dial) -> Wire:
        """A connection to the master, which has said that it is one."""
        server = self.server(key)
        try:
            wire = Wire(server, dial)
        except OSError as error:
            raise ConnectionError(f"master {server.address}: {error}") from error
        try:
            replies = wire.exchange([ROLE])
            refuse_errors(self.settings, replies, [ROLE])
            if why := why_no_master(replies[0], server):
                raise ConnectionError(why)
        except BaseException:
            wire.close()
            raise
        return wire

    def hearers(self) -> list[RedisSettings]:
        """The master: a replica that was cut off hears nothing."""
        return [self.server(b"")]

    def met(self, error: BaseException) -> bool:
        """A lost connection, or a server that is no master, has the sentinels asked again."""
        if not _is_about_the_master(error):
            return False
        with self._lock:
            self._master = None
        return True

    def told(self) -> str:
        """The master of the moment."""
        return f"{self.settings.address}: master {self.server(b'').address}"

    def _asked(self) -> Node:
        found: list[tuple[int, Node]] = []
        silent: list[str] = []
        error_of: type[Exception] = ConnectionError
        enough = len(self.settings.nodes) // 2 + 1
        for node in self.settings.nodes:
            try:
                found.append(self._ask(node))
            except (OSError, InfrastructureError, ConfigurationError) as error:
                error_of = ConfigurationError if isinstance(error, ConfigurationError) else error_of
                silent.append(f"{node[0]}:{node[1]}: {error}")
            if len(found) == enough:
                break
        if not found:
            raise error_of(f"no sentinel names a master {self.settings.service!r} ({'; '.join(silent)})")
        return max(found)[1]

    def _ask(self, node: Node) -> tuple[int, Node]:
        """The master by one sentinel, with the epoch of its configuration."""
        wire = Wire(self.settings.sentinel_at(node), self._dial)
        try:
            service = self.settings.service.encode()
            commands = [
                packed(b"SENTINEL", b"get-master-addr-by-name", service),
                packed(b"SENTINEL", b"master", service),
            ]
            address, told = replies = wire.exchange(commands)
        finally:
            wire.close()
        if address is None:
            raise ConnectionError("it watches no such master")
        refuse_errors(self.settings.sentinel_at(node), replies, commands)
        fields = dict(zip(told[::2], told[1::2], strict=True))
        return int(fields.get(b"config-epoch", 0)), (address[0].decode(), int(address[1]))


def why_no_master(role: Any, server: RedisSettings) -> str:
    """What is wrong with a server that answers ROLE so; '' when it is a master."""
    return "" if role[0] == b"master" else f"{server.address} is a {role[0].decode()} now, not the master"


def _is_about_the_master(error: BaseException) -> bool:
    lost = isinstance(error, (OSError, redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError))
    return lost or (isinstance(error, InfrastructureError) and "READONLY" in str(error))
