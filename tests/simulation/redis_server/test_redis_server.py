"""The simulated Redis gives the bytes that the real one gives to the same bytes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import hiredis
import pytest

from leftfold.testing.simulation.redis_server import RedisServer as Simulated
from tests.redis.server import RedisServer as Real
from tests.simulation.redis_server.redis_twins import Both, Command, packed, real_server

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A real server."""
    with real_server(tmp_path_factory.mktemp("redis") / "data") as server:
        yield server


@pytest.fixture
def both(server: Real) -> Iterator[Both]:
    """Both servers, empty."""
    with ExitStack() as stack:
        both = Both(server, stack)
        yield both
        both.end()


def test_a_watched_key_that_another_connection_writes_makes_exec_answer_nothing(both: Both) -> None:
    both.say(0, (b"HSET", b"mark", b"token", b"1"), (b"WATCH", b"mark", b"other"))
    both.say(1, (b"HSET", b"mark", b"token", b"1"))
    assert both.say(0, (b"MULTI",), (b"HSET", b"row", b"f", b"1"), (b"EXEC",)).endswith(b"*-1\r\n")
    assert both.say(0, (b"MULTI",), (b"EXISTS", b"row"), (b"EXEC",)).endswith(b"*1\r\n:0\r\n")


def test_exec_ends_every_watch_and_the_next_one_rides_behind_it(both: Both) -> None:
    flush = [(b"MULTI",), (b"HSET", b"mark", b"token", b"2"), (b"EXEC",), (b"WATCH", b"mark"), (b"HGET", b"mark", b"f")]
    for _ in range(3):
        assert b"*-1" not in both.say(0, *flush)
    both.say(1, (b"UNLINK", b"mark"))
    assert b"*-1" in both.say(0, *flush)
    assert b"*-1" not in both.say(0, *flush)


def test_what_ends_a_watch(both: Both) -> None:
    for end in ((b"UNWATCH",), (b"MULTI",)):
        both.say(0, (b"SET", b"a", b"1"), (b"WATCH", b"a"), end)
        both.say(1, (b"SET", b"a", b"2"))
        both.say(0, (b"DISCARD",), (b"MULTI",), (b"GET", b"a"), (b"EXEC",))
    both.say(0, (b"WATCH", b"a"), (b"SET", b"a", b"3"), (b"MULTI",), (b"EXEC",))
    both.say(0, (b"WATCH", b"missing"), (b"DEL", b"missing"), (b"MULTI",), (b"EXEC",))
    both.say(0, (b"WATCH", b"a"), (b"SELECT", b"1"), (b"SET", b"a", b"4"), (b"MULTI",), (b"EXEC",), (b"SELECT", b"0"))
    both.say(0, (b"WATCH", b"a"), (b"WATCH", b"a"), (b"MULTI",), (b"WATCH", b"b"), (b"EXEC",))


@pytest.mark.parametrize("write", [(b"FLUSHALL",), (b"FLUSHDB",), (b"EXPIRE", b"a", b"99"), (b"DEL", b"a")])
def test_what_touches_a_watched_key(both: Both, write: Command) -> None:
    both.say(0, (b"SET", b"a", b"1"), (b"WATCH", b"a", b"b"))
    both.say(1, write)
    assert both.say(0, (b"MULTI",), (b"EXEC",)).endswith(b"*-1\r\n")


def test_a_write_that_changes_nothing_does_not_touch(both: Both) -> None:
    both.say(0, (b"ZADD", b"z", b"0", b"m"), (b"HSET", b"h", b"f", b"1"), (b"WATCH", b"z", b"h", b"none"))
    both.say(1, (b"ZADD", b"z", b"0", b"m"), (b"ZREM", b"z", b"n"), (b"HDEL", b"h", b"g"), (b"UNLINK", b"none"))
    both.say(1, (b"SET", b"h", b"1", b"NX"), (b"PERSIST", b"h"), (b"ZADD", b"z", b"NX", b"1", b"m"))
    assert both.say(0, (b"MULTI",), (b"EXEC",)).endswith(b"*0\r\n")


def test_a_watched_key_that_expires_makes_exec_answer_nothing(both: Both) -> None:
    real, lasts, expected = both._sockets[0], 50, b"+OK\r\n*-1\r\n$-1\r\n:-2\r\n"
    while True:
        real.sendall(packed(b"SET", b"a", b"1", b"PX", b"%d" % lasts) + packed(b"WATCH", b"a") + packed(b"PTTL", b"a"))
        if int(both._read(real, b"+OK\r\n" * 2 + b":1\r\n").rpartition(b":")[2]) > 0:
            break
        lasts *= 4
    until = time.time() + lasts / 1000
    while time.time() < until + 0.01:
        time.sleep(0.005)
    transaction = packed(b"MULTI") + packed(b"EXEC") + packed(b"GET", b"a") + packed(b"TTL", b"a")
    real.sendall(transaction)
    assert both._read(real, expected) == expected
    now = [1_000.0]
    session = Simulated(lambda: now[0]).open(_ignored)
    session.receive(packed(b"SET", b"a", b"1", b"PX", b"50") + packed(b"WATCH", b"a"))
    now[0] += 0.06
    assert session.receive(transaction) == expected


def test_errors_while_commands_are_queued_abort_the_transaction(both: Both) -> None:
    for wrong in ((b"NONSENSE",), (b"GET",), (b"HSET", b"a", b"f")):
        both.say(0, (b"MULTI",), (b"SET", b"a", b"1"), wrong, (b"EXEC",), (b"EXISTS", b"a"), (b"EXEC",))
    both.say(0, (b"MULTI",), (b"MULTI",), (b"SET", b"a", b"1"), (b"HGET", b"a", b"f"), (b"EXEC",), (b"GET", b"a"))
    both.say(0, (b"EXEC",), (b"DISCARD",), (b"MULTI",), (b"UNWATCH",), (b"EXEC",))


def test_commands_may_come_in_pieces_and_many_at_once(both: Both) -> None:
    data = b"".join(packed(b"HSET", b"h", b"f%d" % n, b"\r\n" * n) for n in range(50)) + packed(b"HLEN", b"h")
    for start in range(0, len(data), 7):
        both.send(0, data[start : start + 7])
    both.send(1, b"hget h f2\r\n\r\nPING\r\n*0\r\n*1\r\n$4\r\nping\r\n")


@pytest.mark.parametrize("data", [b"*1\r\nPING\r\n", b"*x\r\n", b"*1\r\n$x\r\n", b"*1\r\n$-1\r\n", b"*9999999999\r\n"])
def test_what_is_no_command_is_refused_and_ends_the_connection(server: Real, data: bytes) -> None:
    with ExitStack() as stack:
        both = Both(server, stack)
        both.send(2, data)
        assert both.sessions[2].is_closed
        assert both._sockets[2].recv(1) == b""


def test_quit_is_answered_before_the_connection_ends(server: Real) -> None:
    with ExitStack() as stack:
        both = Both(server, stack)
        both.say(1, (b"QUIT",))
        assert both.sessions[1].is_closed
        assert both._sockets[1].recv(1) == b""


def test_messages_go_to_those_who_have_subscribed(both: Both) -> None:
    both.say(0, (b"SUBSCRIBE", b"one", b"two"), (b"SUBSCRIBE", b"one"))
    both.say(1, (b"SUBSCRIBE", b"one"))
    assert both.say(2, (b"PUBLISH", b"one", b"a\r\n"), (b"PUBLISH", b"two", b""), (b"PUBLISH", b"none", b"x")) == (
        b":2\r\n:1\r\n:0\r\n"
    )
    both.heard(0)
    both.heard(1)
    both.say(0, (b"PING",), (b"PING", b"x"), (b"GET", b"a"), (b"UNSUBSCRIBE", b"one"), (b"PUBLISH", b"one", b"x"))
    both.say(2, (b"MULTI",), (b"PUBLISH", b"one", b"b"), (b"EXEC",))
    both.heard(1)
    both.say(1, (b"UNSUBSCRIBE",), (b"UNSUBSCRIBE",), (b"PUBLISH", b"one", b"x"))
    both.say(0, (b"UNSUBSCRIBE", b"two", b"never"))


def test_what_clients_say_when_they_connect(both: Both) -> None:
    both.say(
        0, (b"CLIENT", b"SETINFO", b"LIB-NAME", b"redis-py"), (b"CLIENT", b"SETNAME", b"me"), (b"CLIENT", b"GETNAME")
    )
    both.say(0, (b"AUTH", b"x"), (b"AUTH", b"default", b"x"), (b"AUTH", b"other", b"x"), (b"AUTH", b"a", b"b", b"c"))
    both.say(0, (b"SELECT", b"3"), (b"SET", b"a", b"1"), (b"SELECT", b"0"), (b"EXISTS", b"a"), (b"SELECT", b"-1"))
    both.say(0, (b"CONFIG", b"GET", b"maxmemory-policy"), (b"CONFIG", b"GET", b"none"), (b"CONFIG", b"NONSENSE"))
    both.say(0, (b"HELLO", b"4"), (b"HELLO", b"x"), (b"HELLO", b"2", b"AUTH", b"a"), (b"HELLO", b"2", b"NONSENSE"))
    both.say(
        0, (b"CLIENT", b"NONSENSE"), (b"CONFIG", b"SET", b"nonsense", b"1"), (b"INFO", b"nonsense"), (b"ROLE", b"x")
    )


def test_the_third_version_of_the_protocol(both: Both) -> None:
    for commands in ([(b"HELLO", b"3")], [(b"HELLO", b"2")]):
        answer = hiredis.Reader()
        answer.feed(both.sessions[0].receive(packed(*commands[0])))
        both._sockets[0].sendall(packed(*commands[0]))
        real, mine = hiredis.Reader(), answer.gets()
        real.feed(both._sockets[0].recv(4096))
        said = real.gets()
        pairs = [dict(zip(said[::2], said[1::2], strict=True)) if isinstance(said, list) else said]
        pairs.append(dict(zip(mine[::2], mine[1::2], strict=True)) if isinstance(mine, list) else mine)
        assert all(isinstance(pair.pop(b"id"), int) for pair in pairs)
        assert pairs[0] == pairs[1]
        both.say(0, (b"HSET", b"h", b"f", b"1"), (b"HGETALL", b"h"), (b"HGETALL", b"none"), (b"GET", b"none"))
        both.say(0, (b"ZADD", b"z", b"1.5", b"m"), (b"ZSCORE", b"z", b"m"), (b"ZSCORE", b"z", b"n"))
        both.say(0, (b"ZRANGEBYSCORE", b"z", b"-inf", b"inf"), (b"SADD", b"s", b"m"), (b"SMEMBERS", b"s"))
        both.say(
            0, (b"WATCH", b"h"), (b"HSET", b"h", b"f", b"2"), (b"MULTI",), (b"EXEC",), (b"CONFIG", b"GET", b"save")
        )
        both.say(0, (b"SUBSCRIBE", b"c"), (b"GET", b"x"), (b"UNSUBSCRIBE",))


def test_a_scan_finds_what_is_there_whatever_comes_and_goes_meanwhile(both: Both) -> None:
    names = [b"v:{view:1-ab:%d}%b" % (n, end) for n in range(40) for end in (b"@", b"#", b"~", b":k")]
    both.say(0, *[(b"HSET", name, b"f", b"1") for name in names], (b"ZADD", b"v:{z}@", b"0", b"m"))
    for what in (
        (),
        (b"MATCH", b"v:{*}[@#~]"),
        (b"TYPE", b"hash"),
        (b"MATCH", b"*[^@]", b"COUNT", b"7"),
        (b"MATCH", b"?"),
    ):
        assert _all(both.simulated, b"SCAN", *what) == set(_real_all(both, b"SCAN", *what))
    session, seen, cursor = both.simulated.open(_ignored), set[bytes](), b"0"
    for round_ in range(99):
        reader = hiredis.Reader()
        reader.feed(session.receive(packed(b"SCAN", cursor) + packed(b"HSET", b"new%d" % round_, b"f", b"1")))
        reply = reader.gets()
        session.receive(packed(b"UNLINK", *[name for name in reply[1] if name != b"v:{z}@"], b"x"))
        seen |= set(reply[1])
        cursor = reply[0]
        if cursor == b"0":
            break
    assert {*names, b"v:{z}@"} <= seen


def test_scans_of_one_page_and_wrong_ones_are_answered_alike(both: Both) -> None:
    both.say(0, (b"HSET", b"h", b"f", b"1"), (b"ZADD", b"z", b"1.5", b"m"))
    both.say(
        0, (b"SCAN", b"x"), (b"SCAN", b"0", b"COUNT", b"0"), (b"SCAN", b"0", b"NONSENSE"), (b"SCAN", b"0", b"MATCH")
    )
    for name, key in ((b"HSCAN", b"h"), (b"ZSCAN", b"z"), (b"HSCAN", b"none"), (b"ZSCAN", b"h"), (b"HSCAN", b"z")):
        both.say(0, (name, key, b"0"), (name, key, b"0", b"MATCH", b"x"), (name, key, b"0", b"COUNT", b"x"))


def test_keys_that_match_a_pattern_are_the_same(both: Both) -> None:
    both.say(0, *[(b"SET", name, b"1") for name in (b"a", b"ab", b"a*", b"[x]", b"a\nb", b"a-b", b"\\", b"A]")])
    for pattern in (
        b"a*",
        b"a\\*",
        b"a?b",
        b"[a-b]*",
        b"[^a]*",
        b"[[]*",
        b"\\\\",
        b"*",
        b"a[-]b",
        b"[",
        b"a[",
        b"[]",
        b"",
    ):
        found, expected = (sorted(each) for each in _listed(both, packed(b"KEYS", pattern)))
        assert found == expected, pattern


def test_a_login_is_asked_for_where_there_is_a_password(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("login") / "data"
    with real_server(directory, "secret") as server, socket.create_connection(("127.0.0.1", server.port), 5) as real:
        session = Simulated(time.time, b"secret").open(_ignored)
        for command in (
            (b"GET", b"a"), (b"NONSENSE",), (b"HELLO", b"3"), (b"AUTH", b"wrong"), (b"MULTI",), (b"PING",),
            (b"AUTH", b"default", b"secret"), (b"GET", b"a"), (b"RESET",), (b"GET", b"a"), (b"AUTH", b"secret"),
            (b"MULTI",), (b"RESET",), (b"AUTH", b"secret"), (b"EXEC",),
        ):  # fmt: skip
            real.sendall(packed(*command))
            assert real.recv(4096) == session.receive(packed(*command)), command


def _ignored(data: bytes | None) -> None:
    """What the server sends by itself is not looked at."""


def _listed(both: Both, data: bytes) -> tuple[list[bytes], list[bytes]]:
    """The list that both answer, which need not have the same order."""
    replies: list[list[bytes]] = []
    mine = both.sessions[0].receive(data)
    both._sockets[0].sendall(data)
    for answer in (both._read(both._sockets[0], mine), mine):
        reader = hiredis.Reader()
        reader.feed(answer)
        replies.append(reader.gets())
    return replies[0], replies[1]


def _all(simulated: Simulated, *command: bytes) -> set[bytes]:
    session, found, cursor = simulated.open(_ignored), set[bytes](), b"0"
    while True:
        reader = hiredis.Reader()
        reader.feed(session.receive(packed(command[0], cursor, *command[1:])))
        cursor, page = reader.gets()
        found |= set(page)
        if cursor == b"0":
            return found


def _real_all(both: Both, *command: bytes) -> set[bytes]:
    found, cursor = set[bytes](), b"0"
    while True:
        reader = hiredis.Reader()
        both._sockets[0].sendall(packed(command[0], cursor, *command[1:]))
        while (reply := reader.gets()) is False:
            reader.feed(both._sockets[0].recv(65536))
        cursor, page = reply
        found |= set(page)
        if cursor == b"0":
            return found
