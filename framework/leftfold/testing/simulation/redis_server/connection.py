"""One connection to the simulated server: login, transactions under WATCH, subscriptions, configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from leftfold.testing.simulation.redis_server.hashes import HASH_COMMANDS
from leftfold.testing.simulation.redis_server.keyspace import (
    KEY_COMMANDS,
    CommandSpec,
    Parts,
    integer,
    is_match,
    wrong_arguments,
)
from leftfold.testing.simulation.redis_server.resp import (
    NULL_ARRAY,
    OK,
    CommandReader,
    ErrorReply,
    ProtocolError,
    Push,
    Reply,
    SimpleString,
    encode,
    number,
    write_reply,
)
from leftfold.testing.simulation.redis_server.sorted_sets import SORTED_COMMANDS
from leftfold.testing.simulation.redis_server.stream_commands import STREAM_COMMANDS

if TYPE_CHECKING:
    from leftfold.testing.simulation.redis_server.simulated_redis import RedisServer

__all__ = ["DATA_COMMANDS", "Session"]

DATA_COMMANDS: dict[bytes, CommandSpec] = {**KEY_COMMANDS, **HASH_COMMANDS, **SORTED_COMMANDS, **STREAM_COMMANDS}
_DATABASES = 16
_FIRST_ARGUMENTS_BYTES = 128
_LOGGED_OUT = frozenset((b"AUTH", b"HELLO", b"QUIT", b"RESET"))
_AT_ONCE = frozenset((b"EXEC", b"DISCARD", b"MULTI", b"WATCH", b"QUIT", b"RESET"))
"""The commands that run within a transaction, where all others are queued."""
_SUBSCRIBED = frozenset((b"SUBSCRIBE", b"UNSUBSCRIBE", b"PING", b"QUIT", b"RESET"))
_LOADING = frozenset(
    (b"AUTH", b"HELLO", b"QUIT", b"RESET", b"SELECT", b"MULTI", b"EXEC", b"DISCARD", b"WATCH", b"UNWATCH")
) | {b"SUBSCRIBE", b"UNSUBSCRIBE", b"PUBLISH", b"INFO", b"CONFIG", b"CLIENT", b"TIME", b"ROLE"}


_QUEUED, _NONE = SimpleString(b"QUEUED"), (None, 0)


class _Several(list[Reply]):
    """Several replies to one command."""


class Session:
    """One connection to the server: bytes in, bytes out.

    Args:
        deliver: called with bytes that are no reply, and with None when the server closes the connection.

    Attributes:
        is_closed: whether the server has closed it, after the bytes that it returned.
    """

    def __init__(self, server: RedisServer, number: int, deliver: Callable[[bytes | None], None]) -> None:
        self._server, self._number, self._deliver = server, number, deliver
        self.is_closed = False
        self._reader = CommandReader()
        self._out: list[bytes] | None = None
        self._begin()

    def _begin(self) -> None:
        self._database, self._version, self._name = 0, 2, b""
        self._is_known = not self._server.password
        self._queue: list[tuple[bytes, list[bytes]]] | None = None
        self._is_refused = False
        self.is_touched = False
        """Whether a watched key has changed."""
        self._watched: dict[tuple[int, bytes], None] = {}
        self._channels: dict[bytes, None] = {}

    def receive(self, data: bytes) -> bytes:
        """The replies to the commands that these bytes complete."""
        out = self._out = []
        try:
            for parts in self._reader.feed(data):
                if self.is_closed:
                    break
                reply = self._answer(parts)
                for each in reply if isinstance(reply, _Several) else (reply,):
                    write_reply(out, each, is_three=self._version == 3)
        except ProtocolError as error:
            out.append(encode(ErrorReply(f"ERR Protocol error: {error}")))
            self.close()
        finally:
            self._out = None
        return b"".join(out)

    def close(self) -> None:
        """Ends the connection with its watches and subscriptions."""
        self._unwatch()
        self._unsubscribe(list(self._channels))
        self.is_closed = True
        self._server.sessions.pop(self, None)

    def drop(self) -> None:
        """Closes the connection from the server's side, at any time."""
        self.close()
        self._deliver(None)

    def notify(self, channel: bytes, message: bytes) -> None:
        """Delivers a message of a subscribed channel."""
        data = encode(Push([b"message", channel, message]), self._version)
        if self._out is not None:
            self._out.append(data)
        else:
            self._deliver(data)

    def _answer(self, parts: list[bytes]) -> Reply:
        name = parts[0].upper()
        if refusal := self._refusal(name, parts):
            self._is_refused = self._queue is not None
            return refusal
        if self._queue is not None and name not in _AT_ONCE:
            self._queue.append((name, parts))
            return _QUEUED
        return self._run(name, parts)

    def _refusal(self, name: bytes, parts: list[bytes]) -> ErrorReply | None:
        """The error for a command that is not even queued, or None."""
        command, server = DATA_COMMANDS.get(name), self._server
        arity = command.arity if command is not None else self._OTHERS.get(name, _NONE)[1]
        failure = None
        if not arity:
            failure = _unknown(parts)
        elif len(parts) < -arity if arity < 0 else len(parts) != arity:
            failure = wrong_arguments(_said(name))
        elif not self._is_known and name not in _LOGGED_OUT:
            failure = ErrorReply("NOAUTH Authentication required.")
        elif command is not None and command.writes and server.refusal:
            failure = ErrorReply(server.refusal)
        elif self._channels and self._version == 2 and name not in _SUBSCRIBED:
            failure = ErrorReply(
                f"ERR Can't execute '{_said(name)}': only (P)SUBSCRIBE / (P)UNSUBSCRIBE / PING / QUIT / RESET "
                "are allowed in this context"
            )
        elif server.is_loading and name not in _LOADING:
            failure = ErrorReply("LOADING Redis is loading the dataset in memory")
        return failure

    def _run(self, name: bytes, parts: list[bytes]) -> Reply:
        try:
            if name in self._OTHERS:
                return self._OTHERS[name][0](self, parts[1:])
            return self._server.execute(self._database, name, parts[1:])
        except ErrorReply as failure:
            return failure

    def _multi(self, parts: Parts) -> Reply:
        if self._queue is not None:
            raise ErrorReply("ERR MULTI calls can not be nested")
        self._queue = []
        return OK

    def _exec(self, parts: Parts) -> Reply:
        if self._queue is None:
            raise ErrorReply("ERR EXEC without MULTI")
        for database, key in self._watched:
            self._server.space(database).is_there(key)
        queue, is_refused, is_touched = self._queue, self._is_refused, self.is_touched
        self._end_transaction()
        if is_refused:
            raise ErrorReply("EXECABORT Transaction discarded because of previous errors.")
        if is_touched:
            return NULL_ARRAY
        with self._server.at_once():
            return [self._run(name, command) for name, command in queue]

    def _discard(self, parts: Parts) -> Reply:
        if self._queue is None:
            raise ErrorReply("ERR DISCARD without MULTI")
        self._end_transaction()
        return OK

    def _end_transaction(self) -> None:
        self._queue, self._is_refused = None, False
        self._unwatch()

    def _watch(self, parts: Parts) -> Reply:
        if self._queue is not None:
            raise ErrorReply("ERR WATCH inside MULTI is not allowed")
        for key in parts:
            self._watched[self._database, key] = None
            self._server.watchers.setdefault((self._database, key), {})[self] = None
        return OK

    def _unwatch(self, parts: Parts = ()) -> Reply:
        for place in self._watched:
            watchers = self._server.watchers[place]
            watchers.pop(self, None)
            if not watchers:
                del self._server.watchers[place]
        self._watched.clear()
        self.is_touched = False
        return OK

    def _subscribe(self, parts: Parts) -> Reply:
        replies = _Several()
        for name in parts:
            self._channels[name] = None
            self._server.channels.setdefault(name, {})[self] = None
            replies.append(Push([b"subscribe", name, len(self._channels)]))
        return replies

    def _unsubscribe(self, parts: Parts) -> Reply:
        replies = _Several()
        names: list[bytes | None] = [*(parts or self._channels)]
        for name in names or [None]:
            if name is not None and self._channels.pop(name, self) is None:
                del self._server.channels[name][self]
            replies.append(Push([b"unsubscribe", name, len(self._channels)]))
        return replies

    def _publish(self, parts: Parts) -> Reply:
        hearers = list(self._server.channels.get(parts[0], ()))
        for session in hearers:
            session.notify(parts[0], parts[1])
        return len(hearers)

    def _ping(self, parts: Parts) -> Reply:
        if len(parts) > 1:
            raise wrong_arguments("ping")
        if self._channels and self._version == 2:
            return [b"pong", parts[0] if parts else b""]
        return parts[0] if parts else SimpleString(b"PONG")

    def _echo(self, parts: Parts) -> Reply:
        return parts[0]

    def _auth(self, parts: Parts) -> Reply:
        if len(parts) > 2:
            raise ErrorReply("ERR syntax error")
        if len(parts) == 1 and not self._server.password:
            raise ErrorReply(
                "ERR AUTH <password> called without any password configured for the default user. "
                "Are you sure your configuration is correct?"
            )
        self._log_in(parts[0] if len(parts) == 2 else b"default", parts[-1])
        return OK

    def _log_in(self, user: bytes, password: bytes) -> None:
        if user != b"default" or (self._server.password and password != self._server.password):
            raise ErrorReply("WRONGPASS invalid username-password pair or user is disabled.")
        self._is_known = True

    def _hello(self, parts: Parts) -> Reply:
        rest, version, name = list(parts), self._version, self._name
        if rest:
            asked = rest.pop(0)
            if number(asked) is None:
                raise ErrorReply("ERR Protocol version is not an integer or out of range")
            if asked not in (b"2", b"3"):
                raise ErrorReply("NOPROTO unsupported protocol version")
            version = int(asked)
        while rest:
            option = rest.pop(0)
            if option.upper() == b"AUTH" and len(rest) >= 2:
                self._log_in(rest.pop(0), rest.pop(0))
            elif option.upper() == b"SETNAME" and rest:
                name = rest.pop(0)
            else:
                raise ErrorReply(f"ERR Syntax error in HELLO option '{option.decode(errors='surrogateescape')}'")
        if not self._is_known:
            raise ErrorReply(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> "
                "<pass> option can be used to authenticate the client and select the RESP protocol version at the "
                "same time"
            )
        self._version, self._name = version, name
        said: dict[bytes, Reply] = {
            b"server": b"redis",
            b"version": self._server.VERSION,
            b"proto": version,
            b"id": self._number,
        }
        return {**said, b"mode": b"standalone", b"role": b"master", b"modules": []}

    def _select(self, parts: Parts) -> Reply:
        database = integer(parts[0])
        if not 0 <= database < _DATABASES:
            raise ErrorReply("ERR DB index is out of range")
        self._database = database
        return OK

    def _client(self, parts: Parts) -> Reply:
        match [parts[0].upper(), *parts[1:]]:
            case [b"ID"]:
                return self._number
            case [b"GETNAME"]:
                return self._name or None
            case [b"SETNAME", name]:
                self._name = name
                return OK
            case _:
                asked = parts[0].decode(errors="surrogateescape")
                raise ErrorReply(f"ERR Unknown subcommand or wrong number of arguments for '{asked}'. Try CLIENT HELP.")

    def _config(self, parts: Parts) -> Reply:
        match [parts[0].upper(), *parts[1:]]:
            case [b"GET", pattern]:
                return {name: value for name, value in self._server.config.items() if is_match(pattern.lower(), name)}
            case [b"SET", name, value] if name.lower() in self._server.config:
                self._server.config[name.lower()] = value
                return OK
            case [b"SET", name, _]:
                raise ErrorReply(f"ERR Unsupported CONFIG parameter: {name.decode(errors='surrogateescape')}")
            case _:
                asked = parts[0].decode(errors="surrogateescape")
                raise ErrorReply(f"ERR Unknown subcommand or wrong number of arguments for '{asked}'. Try CONFIG HELP.")

    def _info(self, parts: Parts) -> Reply:
        return self._server.info(parts[0].lower() if parts else b"default")

    def _time(self, parts: Parts) -> Reply:
        micros = int(self._server.now() * 1_000_000)
        return [b"%d" % (micros // 1_000_000), b"%d" % (micros % 1_000_000)]

    def _role(self, parts: Parts) -> Reply:
        return [b"master", 0, []]

    def _flushall(self, parts: Parts) -> Reply:
        self._server.flush()
        return OK

    def _quit(self, parts: Parts) -> Reply:
        self.close()
        return OK

    def _reset(self, parts: Parts) -> Reply:
        self._unwatch()
        self._unsubscribe(list(self._channels))
        self._begin()
        return SimpleString(b"RESET")

    _OTHERS: ClassVar[dict[bytes, tuple[Callable[[Session, Parts], Reply], int]]] = {
        b"MULTI": (_multi, 1),
        b"EXEC": (_exec, 1),
        b"DISCARD": (_discard, 1),
        b"WATCH": (_watch, -2),
        b"UNWATCH": (_unwatch, 1),
        b"SUBSCRIBE": (_subscribe, -2),
        b"UNSUBSCRIBE": (_unsubscribe, -1),
        b"PUBLISH": (_publish, 3),
        b"PING": (_ping, -1),
        b"ECHO": (_echo, 2),
        b"AUTH": (_auth, -2),
        b"HELLO": (_hello, -1),
        b"SELECT": (_select, 2),
        b"CLIENT": (_client, -2),
        b"CONFIG": (_config, -2),
        b"INFO": (_info, -1),
        b"TIME": (_time, 1),
        b"ROLE": (_role, 1),
        b"FLUSHALL": (_flushall, -1),
        b"QUIT": (_quit, -1),
        b"RESET": (_reset, 1),
    }


def _said(name: bytes) -> str:
    return name.decode(errors="surrogateescape").lower()


def _unknown(parts: list[bytes]) -> ErrorReply:
    """The error for a command that the server lacks."""
    first = ""
    for part in parts[1:]:
        if len(first) >= _FIRST_ARGUMENTS_BYTES:
            break
        first += f"`{_c_string(part, _FIRST_ARGUMENTS_BYTES - len(first))}`, "
    return ErrorReply(
        f"ERR unknown command `{_c_string(parts[0], _FIRST_ARGUMENTS_BYTES)}`, with args beginning with: {first}"
    )


def _c_string(text: bytes, most: int) -> str:
    """Text as C prints it: up to its first NUL."""
    return text[:most].partition(b"\0")[0].decode(errors="surrogateescape")
