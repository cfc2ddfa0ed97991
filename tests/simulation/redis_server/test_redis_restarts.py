"""What a simulated Redis remembers over a restart: everything, what was durable, or nothing."""

from __future__ import annotations

import hiredis
import pytest

from leftfold.testing.simulation.redis_server import RedisServer


class _Client:
    """A server with a clock that is set, and one connection to it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.server = RedisServer(lambda: self.now)
        self.closed: list[bytes | None] = []
        self.connect()

    def connect(self) -> None:
        """Opens another connection."""
        self._session = self.server.open(self.closed.append)

    def say(self, text: str) -> object:
        """The reply to the last of some commands, which are separated by semicolons."""
        reader = hiredis.Reader()
        for command in text.split("; "):
            reader.feed(self._session.receive(command.encode() + b"\r\n"))
        replies = []
        while (reply := reader.gets()) is not False:
            replies.append(reply)
        return replies[-1]


@pytest.fixture
def client() -> _Client:
    """A client of an empty server."""
    return _Client()


def test_a_restart_keeps_everything_unless_something_is_lost(client: _Client) -> None:
    client.say("SET a 1; HSET h f 1; ZADD z 0 m; SADD s m; XADD x 5-1 f 1; SELECT 1; SET b 2")
    before = client.server.dump(), client.server.dump(1)
    client.server.restart()
    assert client.closed == [None]
    assert (client.server.dump(), client.server.dump(1)) == before
    assert before[0][b"z"] == {b"m": 0.0}
    assert before[0][b"x"] == [(b"5-1", [b"f", b"1"])]


def test_the_writes_of_the_last_seconds_are_lost(client: _Client) -> None:
    for second in range(5):
        client.now = 1_000.0 + second
        client.say(f"SET k{second} 1")
    client.server.restart(lost_seconds=2.0)
    assert sorted(client.server.dump()) == [b"k0", b"k1", b"k2"]


def test_a_restart_goes_back_to_what_was_saved_and_on_from_there(client: _Client) -> None:
    client.say("SET a 1")
    saved = client.server.saved()
    client.say("SET a 2; SET b 1")
    client.server.restart(saved=saved)
    assert client.server.dump() == {b"a": b"1"}
    client.connect()
    client.say("SET c 1")
    client.server.restart()
    assert client.server.dump() == {b"a": b"1", b"c": b"1"}


def test_a_transaction_is_durable_whole(client: _Client) -> None:
    client.say("MULTI; SET a 1; SET b 1; EXEC")
    assert len(client.server.saved()) == 1


def test_what_had_expired_stays_away_and_times_to_live_go_on(client: _Client) -> None:
    client.say("SET short 1 EX 2; SET long 1 EX 100; SET back 1 EX 2")
    client.now += 3
    client.say("SET back 2 NX")
    client.now += 10
    client.server.restart()
    client.connect()
    assert client.server.dump() == {b"long": b"1", b"back": b"2"}
    assert client.say("TTL long") == 87


def test_entries_get_the_ids_that_they_had(client: _Client) -> None:
    first = client.say("XADD x * f 1")
    assert first == b"1000000-0"
    client.now -= 5
    assert client.say("XADD x * f 2") == b"1000000-1"
    client.server.restart()
    client.connect()
    assert [entry[0] for entry in client.server.dump()[b"x"]] == [b"1000000-0", b"1000000-1"]
    client.now += 6
    assert client.say("XADD x * f 3") == b"1001000-0"


def test_streams_are_trimmed_by_whole_nodes_unless_exactly(client: _Client) -> None:
    for _ in range(250):
        client.say("XADD near MAXLEN ~ 120 * f 1; XADD exact MAXLEN = 120 * f 1")
    assert client.say("XLEN exact") == 120
    assert client.say("XLEN near") == 150


def test_nothing_is_left_when_the_disk_is_wiped(client: _Client) -> None:
    client.say("SET a 1")
    client.server.wipe()
    client.server.restart()
    assert client.server.dump() == {}


def test_a_restart_forgets_what_was_watched_and_subscribed_to(client: _Client) -> None:
    client.say("SUBSCRIBE news")
    client.connect()
    client.say("WATCH a; MULTI; SET a 1")
    client.server.restart()
    assert not client.server.sessions
    assert not client.server.watchers
    assert client.closed == [None, None]
    client.connect()
    assert isinstance(client.say("EXEC"), hiredis.ReplyError)
    assert client.say("PUBLISH news x") == 0


def test_while_it_loads_it_says_so(client: _Client) -> None:
    client.say("SET a 1")
    client.server.restart(loading_seconds=1.0)
    client.connect()
    assert str(client.say("GET a")) == "LOADING Redis is loading the dataset in memory"
    client.now += 1
    assert client.say("GET a") == b"1"


def test_writes_can_be_refused(client: _Client) -> None:
    client.server.refusal = "OOM command not allowed when used memory > 'maxmemory'."
    assert str(client.say("SET a 1")).startswith("OOM")
    assert str(client.say("MULTI; SET a 1; EXEC")).startswith("EXECABORT")
    assert client.say("GET a") is None
