"""Whatever commands are drawn, the simulated Redis answers them as the real one does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.redis.server import RedisServer as Real
from tests.simulation.redis_server.redis_twins import CONNECTIONS, Both, Command, Step, real_server

pytestmark = pytest.mark.servers

KEYS = st.sampled_from([b"a", b"b", b"{c}:d"])
NAMES = st.sampled_from([b"f", b"g", b"h\r\n"])
VALUES = st.sampled_from([b"", b"1", b"-7", b"x y", b"\0\xff"])
SCORES = st.sampled_from([b"0", b"1", b"-1.5", b"1e3", b"inf", b"-inf", b"0.1", b"nan", b"x"])
SCORE_ENDS = st.sampled_from([b"0", b"(0", b"1", b"(1", b"-inf", b"+inf", b"(", b"x"])
MEMBERS = st.sampled_from([b"a", b"a\0k", b"a\0l", b"b\0k", b"\xc3\xa9\0k", b""])
LEXICAL_ENDS = st.sampled_from([b"-", b"+", b"[a", b"(a", b"[a\0", b"(a\0\x7f", b"(b\0k", b"[\xc3\xa9", b"[", b"a"])
IDS = st.sampled_from([b"1-1", b"1-2", b"2", b"2-5", b"3-0", b"0-0", b"x", b"9-9"])
ID_ENDS = st.sampled_from([b"-", b"+", b"1", b"1-2", b"(1-1", b"(2", b"2-5", b"3", b"x", b"1-2-3"])
INDEXES = st.sampled_from([b"0", b"1", b"-1", b"-2", b"5", b"-9", b"x"])
SIZES = st.sampled_from([b"0", b"1", b"2", b"-1"])


def _command(name: bytes, *parts: st.SearchStrategy[bytes] | bytes) -> st.SearchStrategy[Command]:
    return st.tuples(st.just(name), *(st.just(part) if isinstance(part, bytes) else part for part in parts))


def _one(*names: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from(names)


STRINGS = st.one_of(
    _command(b"SET", KEYS, VALUES),
    _command(b"SET", KEYS, VALUES, _one(b"NX", b"xx", b"KEEPTTL", b"GET", b"EX", b"ZZ")),
    _command(b"SET", KEYS, VALUES, _one(b"EX", b"PX"), _one(b"500000", b"0", b"x"), _one(b"NX", b"XX", b"KEEPTTL")),
    _command(b"GET", KEYS),
    _command(b"INCR", KEYS),
)
HASHES = st.one_of(
    _command(b"HSET", KEYS, NAMES, VALUES),
    _command(b"HSET", KEYS, NAMES, VALUES, NAMES, VALUES),
    _command(b"HSET", KEYS, NAMES, VALUES, NAMES),
    _command(b"HGET", KEYS, NAMES),
    _command(b"HMGET", KEYS, NAMES, NAMES),
    _command(b"HDEL", KEYS, NAMES, NAMES),
    _command(b"HEXISTS", KEYS, NAMES),
    st.builds(lambda name, key: (name, key), _one(b"HGETALL", b"HKEYS", b"HVALS", b"HLEN"), KEYS),
)
SORTED = st.one_of(
    _command(b"ZADD", KEYS, SCORES, MEMBERS),
    _command(b"ZADD", KEYS, b"0", MEMBERS, b"0", MEMBERS),
    _command(b"ZADD", KEYS, _one(b"NX", b"XX", b"CH", b"GT", b"LT"), SCORES, MEMBERS),
    _command(b"ZADD", KEYS, _one(b"NX", b"CH"), _one(b"GT", b"XX"), SCORES, MEMBERS),
    _command(b"ZREM", KEYS, MEMBERS, MEMBERS),
    _command(b"ZSCORE", KEYS, MEMBERS),
    _command(b"ZCARD", KEYS),
    _command(b"ZRANGE", KEYS, INDEXES, INDEXES),
    _command(b"ZRANGE", KEYS, INDEXES, INDEXES, _one(b"WITHSCORES", b"REV", b"x")),
    _command(b"ZREVRANGE", KEYS, INDEXES, INDEXES, _one(b"WITHSCORES", b"REV")),
    _command(b"ZRANGEBYSCORE", KEYS, SCORE_ENDS, SCORE_ENDS),
    _command(b"ZRANGEBYSCORE", KEYS, SCORE_ENDS, SCORE_ENDS, b"WITHSCORES", b"LIMIT", SIZES, SIZES),
    _command(b"ZREMRANGEBYSCORE", KEYS, SCORE_ENDS, SCORE_ENDS),
    _command(b"ZCOUNT", KEYS, SCORE_ENDS, SCORE_ENDS),
)
LEXICAL = st.one_of(
    _command(b"ZADD", b"lex", b"0", MEMBERS),
    _command(b"ZREM", b"lex", MEMBERS),
    _command(b"ZLEXCOUNT", b"lex", LEXICAL_ENDS, LEXICAL_ENDS),
    st.tuples(_one(b"ZRANGEBYLEX", b"ZREVRANGEBYLEX"), st.just(b"lex"), LEXICAL_ENDS, LEXICAL_ENDS),
    _command(b"ZRANGEBYLEX", b"lex", LEXICAL_ENDS, LEXICAL_ENDS, b"LIMIT", SIZES, SIZES),
    _command(b"ZREVRANGEBYLEX", b"lex", LEXICAL_ENDS, LEXICAL_ENDS, b"LIMIT", SIZES, SIZES),
)
OTHERS = st.one_of(
    _command(b"XADD", KEYS, IDS, NAMES, VALUES),
    _command(b"XADD", KEYS, b"MAXLEN", _one(b"1", b"2", b"-1", b"x"), IDS, NAMES, VALUES),
    _command(b"XADD", KEYS, b"MAXLEN", _one(b"=", b"~"), b"1", IDS, NAMES, VALUES),
    _command(b"XADD", KEYS, IDS, NAMES, VALUES, NAMES),
    _command(b"XLEN", KEYS),
    st.tuples(_one(b"XRANGE", b"XREVRANGE"), KEYS, ID_ENDS, ID_ENDS),
    _command(b"XREVRANGE", KEYS, ID_ENDS, ID_ENDS, b"COUNT", SIZES),
    _command(b"SADD", KEYS, MEMBERS, MEMBERS),
    _command(b"SREM", KEYS, MEMBERS, MEMBERS),
    _command(b"SISMEMBER", KEYS, MEMBERS),
    _command(b"SCARD", KEYS),
)
GENERIC = st.one_of(
    st.tuples(_one(b"DEL", b"UNLINK", b"EXISTS"), KEYS, KEYS),
    st.tuples(_one(b"TYPE", b"PERSIST"), KEYS),
    st.tuples(_one(b"EXPIRE", b"PEXPIRE"), KEYS, _one(b"500000", b"0", b"-1", b"x")),
    _command(b"EXPIREAT", KEYS, _one(b"1", b"99999999999")),
    _command(b"DBSIZE"),
    st.tuples(_one(b"FLUSHDB", b"FLUSHALL")),
    _command(b"SELECT", _one(b"0", b"1", b"16", b"x")),
    _command(b"PUBLISH", KEYS, VALUES),
    _command(b"PING"),
    _command(b"ECHO", VALUES),
    _command(b"NONSENSE", VALUES, NAMES),
)
TRANSACTIONS = st.one_of(
    st.tuples(_one(b"MULTI", b"EXEC", b"DISCARD", b"UNWATCH")), _command(b"WATCH", KEYS), _command(b"WATCH", KEYS, KEYS)
)
SOUND = st.one_of(STRINGS, HASHES, SORTED, LEXICAL, OTHERS, GENERIC)
SHORT = SOUND.map(lambda command: command[:-1] or command)
COMMANDS = st.one_of(SOUND, SOUND, TRANSACTIONS, TRANSACTIONS, SHORT)
STEPS = st.lists(st.tuples(st.integers(0, CONNECTIONS - 1), st.lists(COMMANDS, min_size=1, max_size=4)), max_size=25)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A real server."""
    with real_server(tmp_path_factory.mktemp("redis") / "data") as server:
        yield server


@given(steps=STEPS)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_commands_over_several_connections_are_answered_alike(server: Real, steps: list[Step]) -> None:
    with ExitStack() as stack:
        both = Both(server, stack)
        for number, commands in steps:
            both.say(number, *commands)
        both.end()
