"""The simulated Redis server: its databases, watches and subscriptions, and restarts that may lose writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from leftfold.testing.simulation.redis_server.connection import DATA_COMMANDS, Session
from leftfold.testing.simulation.redis_server.hashes import Hash, Set, String
from leftfold.testing.simulation.redis_server.keyspace import Keyspace, Parts
from leftfold.testing.simulation.redis_server.resp import Reply
from leftfold.testing.simulation.redis_server.sorted_sets import SortedSet
from leftfold.testing.simulation.redis_server.stream_commands import RedisStream

__all__ = ["RedisServer", "Saved"]

_Write: TypeAlias = tuple[int, bytes, Parts]
_Logged: TypeAlias = tuple[float, list[_Write]]
Saved: TypeAlias = tuple[_Logged, ...]
"""The durable writes, each with its time, those of a transaction together."""


class RedisServer:
    """One Redis server, without threads, sockets or a clock of its own.

    Every write goes to a log, like an append-only file; a restart rebuilds the data from the durable part of it. Each
    write is repeated at its original time, so that expiry and entry ids are the same.

    Args:
        now: seconds since 1970, by the server's clock. password: of the default user, b"" for none.

    Attributes:
        config: the values of CONFIG GET. refusal: an error with which every write command is answered, "" for none.
        sessions: the open connections. watchers, channels: the connections that watch a key, or have subscribed to a
            channel.
    """

    VERSION = b"6.2.14"

    def __init__(self, now: Callable[[], float], password: bytes = b"") -> None:
        self.now, self.password = now, password
        self.refusal = ""
        self.config: dict[bytes, bytes] = {
            b"appendfsync": b"everysec",
            b"appendonly": b"yes",
            b"databases": b"16",
            b"maxmemory": b"0",
            b"maxmemory-policy": b"noeviction",
            b"save": b"",
        }
        self.sessions: dict[Session, None] = {}
        self.watchers: dict[tuple[int, bytes], dict[Session, None]] = {}
        self.channels: dict[bytes, dict[Session, None]] = {}
        self._spaces: dict[int, Keyspace] = {}
        self._log: list[_Logged] = []
        self._group: list[_Write] | None = None
        self._replayed: float | None = None
        self._loading_until = -1.0
        self._opened = 0

    def open(self, deliver: Callable[[bytes | None], None]) -> Session:
        """Opens a connection.

        Args:
            deliver: called with bytes that are no reply, and with None when the server closes the connection.
        """
        self._opened += 1
        session = Session(self, self._opened, deliver)
        self.sessions[session] = None
        return session

    @property
    def is_loading(self) -> bool:
        """Whether the server is still loading its data after a restart."""
        return self._loading_until >= 0 and self.now() < self._loading_until

    def space(self, database: int) -> Keyspace:
        """The keyspace of a database."""
        if database not in self._spaces:

            def touched(key: bytes) -> None:
                for session in self.watchers.get((database, key), ()):
                    session.is_touched = True

            def expired(key: bytes) -> None:
                self._write((database, b"UNLINK", [key]))

            self._spaces[database] = Keyspace(self._time, touched, expired)
        return self._spaces[database]

    def execute(self, database: int, name: bytes, parts: Parts) -> Reply:
        """Runs one command on a database.

        Raises:
            ErrorReply: the server's error reply.
        """
        space, command = self.space(database), DATA_COMMANDS[name]
        before = space.writes
        try:
            return command.run(space, parts)
        finally:
            if space.writes != before:
                self._write((database, name, parts))

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Makes the writes within the block durable together."""
        group = self._group = []
        try:
            yield
        finally:
            self._group = None
            if group:
                self._log.append((self._time(), group))

    def flush(self) -> None:
        """Removes every key of every database."""
        for database in list(self._spaces):
            self.execute(database, b"FLUSHDB", ())

    def saved(self) -> Saved:
        """The writes so far, for a `restart` from them."""
        return tuple(self._log)

    def restart(self, *, lost_seconds: float = 0.0, saved: Saved | None = None, loading_seconds: float = 0.0) -> None:
        """Restarts the server from its durable writes; every connection is closed.

        Args:
            lost_seconds: the writes of the last so many seconds are lost. saved: restarts from these writes instead.
            loading_seconds: for so long it answers that it is loading.
        """
        until = self.now() - lost_seconds
        log = list(saved) if saved is not None else self._log
        self._start([logged for logged in log if lost_seconds <= 0 or logged[0] <= until])
        self._loading_until = self.now() + loading_seconds if loading_seconds else -1.0

    def wipe(self) -> None:
        """Restarts the server without data; every connection is closed."""
        self._start([])

    def dump(self, database: int = 0) -> dict[bytes, Any]:
        """The keys and their values: bytes, dict, set, scores by member, or a list of (id, fields)."""
        space = self.space(database)
        return {key: _plain(space.values[key]) for key in list(space.values) if space.is_there(key)}

    def info(self, section: bytes) -> bytes:
        """The reply to INFO; an unknown section is empty."""
        keys = {number: space for number, space in self._spaces.items() if space.values}
        sections: Mapping[bytes, dict[bytes, object]] = {
            b"server": {b"redis_version": self.VERSION.decode(), b"redis_mode": "standalone"},
            b"clients": {b"connected_clients": len(self.sessions)},
            b"memory": {
                b"used_memory": 1_000_000,
                b"maxmemory": self.config[b"maxmemory"].decode(),
                b"maxmemory_policy": self.config[b"maxmemory-policy"].decode(),
            },
            b"persistence": {b"loading": int(self.is_loading), b"aof_enabled": 1},
            b"replication": {b"role": "master", b"connected_slaves": 0},
            b"keyspace": {
                b"db%d" % number: f"keys={len(space.values)},expires={len(space.expires)},avg_ttl=0"
                for number, space in sorted(keys.items())
            },
        }
        lines = []
        for name, fields in sections.items():
            if section in (name, b"default", b"all", b"everything"):
                text = [b"%b:%b" % (field, str(value).encode()) for field, value in fields.items()]
                lines.append(b"\r\n".join([b"# " + name.capitalize(), *text, b""]))
        return b"\r\n".join(lines)

    def _time(self) -> float:
        return self.now() if self._replayed is None else self._replayed

    def _write(self, write: _Write) -> None:
        if self._replayed is not None:
            return
        if self._group is not None:
            self._group.append(write)
        else:
            self._log.append((self._time(), [write]))

    def _start(self, log: list[_Logged]) -> None:
        for session in list(self.sessions):
            session.drop()
        self._spaces.clear()
        self._log = log
        try:
            for self._replayed, group in log:
                for database, name, parts in group:
                    self.space(database)
                    DATA_COMMANDS[name].run(self._spaces[database], parts)
        finally:
            self._replayed = None


def _plain(value: Any) -> Any:
    match value:
        case String():
            return value.text
        case Hash():
            return {**value}
        case Set():
            return {*value}
        case SortedSet():
            return {**value.scores}
        case RedisStream():
            return [(b"%d-%d" % id_, [*value.fields[id_]]) for id_ in value.ids]
        case _:
            raise TypeError(f"a key holds {value!r}")
