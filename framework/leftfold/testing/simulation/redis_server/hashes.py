"""Strings, hashes and sets, and the commands on them."""

from __future__ import annotations

from leftfold.testing.simulation.redis_server.keyspace import (
    CommandSpec,
    Keyspace,
    Parts,
    integer,
    read_cursor,
    read_scan_options,
    scan_page,
    wrong_arguments,
)
from leftfold.testing.simulation.redis_server.resp import OK, ErrorReply, Reply

__all__ = ["HASH_COMMANDS", "Hash", "Set", "String"]


class String:
    """A string value of a key."""

    NAME = b"string"

    def __init__(self) -> None:
        self.text = b""

    def __len__(self) -> int:
        return 1


class Hash(dict[bytes, bytes]):
    """A hash: fields and their values, in the order in which they were first written."""

    NAME = b"hash"


class Set(set[bytes]):
    """A set of members."""

    NAME = b"set"


def _set(space: Keyspace, parts: Parts) -> Reply:
    key, value = parts[0], parts[1]
    flags, ends = _set_options(parts[2:], space.now_ms())
    before = space.find(key, String) if b"GET" in flags else None
    otherwise = before.text if before is not None else None
    is_there = space.is_there(key)
    if (b"NX" in flags and is_there) or (b"XX" in flags and not is_there):
        return otherwise
    string, kept = String(), space.expires.get(key) if b"KEEPTTL" in flags else ends
    string.text = value
    space.put(key, string)
    if kept is not None:
        space.expires[key] = kept
    return otherwise if b"GET" in flags else OK


def _set_options(parts: Parts, now_ms: int) -> tuple[set[bytes], int | None]:
    """The flags of a SET, and when its key expires in milliseconds."""
    flags, ends, rest = set[bytes](), None, list(parts)
    while rest:
        option = rest.pop(0).upper()
        if option in (b"EX", b"PX", b"EXAT", b"PXAT") and rest and ends is None:
            ends = option, rest.pop(0)
        elif option in (b"NX", b"XX", b"GET", b"KEEPTTL"):
            flags.add(option)
        else:
            raise ErrorReply("ERR syntax error")
    if {b"NX", b"XX"} <= flags or {b"NX", b"GET"} <= flags or (ends is not None and b"KEEPTTL" in flags):
        raise ErrorReply("ERR syntax error")
    if ends is None:
        return flags, None
    option, text = ends
    value = integer(text) * (1000 if option in (b"EX", b"EXAT") else 1)
    if value <= 0:
        raise ErrorReply("ERR invalid expire time in set")
    return flags, value if option.endswith(b"AT") else value + now_ms


def _get(space: Keyspace, parts: Parts) -> Reply:
    found = space.find(parts[0], String)
    return None if found is None else found.text


def _incr(space: Keyspace, parts: Parts) -> Reply:
    found = space.find(parts[0], String)
    value = integer(found.text if found is not None else b"0")
    if value == (1 << 63) - 1:
        raise ErrorReply("ERR increment or decrement would overflow")
    space.make(parts[0], String).text = b"%d" % (value + 1)
    space.changed(parts[0])
    return value + 1


def _hset(space: Keyspace, parts: Parts) -> Reply:
    key = parts[0]
    if len(parts) % 2 == 0:
        raise wrong_arguments("hset")
    fields = space.make(key, Hash)
    before = len(fields)
    fields.update(zip(parts[1::2], parts[2::2], strict=True))
    space.changed(key, len(parts) // 2)
    return len(fields) - before


def _hget(space: Keyspace, parts: Parts) -> Reply:
    fields = space.find(parts[0], Hash)
    return None if fields is None else fields.get(parts[1])


def _hmget(space: Keyspace, parts: Parts) -> Reply:
    fields = space.find(parts[0], Hash) or Hash()
    return [fields.get(name) for name in parts[1:]]


def _hgetall(space: Keyspace, parts: Parts) -> Reply:
    fields = space.find(parts[0], Hash) or Hash()
    return {**fields}


def _hkeys(space: Keyspace, parts: Parts) -> Reply:
    return [*(space.find(parts[0], Hash) or ())]


def _hvals(space: Keyspace, parts: Parts) -> Reply:
    return [*(space.find(parts[0], Hash) or Hash()).values()]


def _hlen(space: Keyspace, parts: Parts) -> Reply:
    return len(space.find(parts[0], Hash) or ())


def _hexists(space: Keyspace, parts: Parts) -> Reply:
    return int(parts[1] in (space.find(parts[0], Hash) or ()))


def _hdel(space: Keyspace, parts: Parts) -> Reply:
    fields = space.find(parts[0], Hash) or Hash()
    count = sum([fields.pop(name, None) is not None for name in parts[1:]])
    if count:
        space.changed(parts[0], count)
    return count


def _hscan(space: Keyspace, parts: Parts) -> Reply:
    cursor, fields = read_cursor(parts[1]), space.find(parts[0], Hash)
    if fields is None:
        return [b"0", []]
    options = read_scan_options(parts[2:])
    next_, page = scan_page(fields, cursor, options)
    return [next_, [part for name in page for part in (name, fields[name])]]


def _sadd(space: Keyspace, parts: Parts) -> Reply:
    members = space.make(parts[0], Set)
    before = len(members)
    members.update(parts[1:])
    if count := len(members) - before:
        space.changed(parts[0], count)
    return count


def _srem(space: Keyspace, parts: Parts) -> Reply:
    members = space.find(parts[0], Set) or Set()
    before = len(members)
    members.difference_update(parts[1:])
    if count := before - len(members):
        space.changed(parts[0], count)
    return count


def _smembers(space: Keyspace, parts: Parts) -> Reply:
    return set(space.find(parts[0], Set) or ())


def _sismember(space: Keyspace, parts: Parts) -> Reply:
    return int(parts[1] in (space.find(parts[0], Set) or ()))


def _scard(space: Keyspace, parts: Parts) -> Reply:
    return len(space.find(parts[0], Set) or ())


HASH_COMMANDS: dict[bytes, CommandSpec] = {
    b"SET": CommandSpec(_set, -3, True),
    b"GET": CommandSpec(_get, 2),
    b"INCR": CommandSpec(_incr, 2, True),
    b"HSET": CommandSpec(_hset, -4, True),
    b"HGET": CommandSpec(_hget, 3),
    b"HMGET": CommandSpec(_hmget, -3),
    b"HGETALL": CommandSpec(_hgetall, 2),
    b"HKEYS": CommandSpec(_hkeys, 2),
    b"HVALS": CommandSpec(_hvals, 2),
    b"HLEN": CommandSpec(_hlen, 2),
    b"HEXISTS": CommandSpec(_hexists, 3),
    b"HDEL": CommandSpec(_hdel, -3, True),
    b"HSCAN": CommandSpec(_hscan, -3),
    b"SADD": CommandSpec(_sadd, -3, True),
    b"SREM": CommandSpec(_srem, -3, True),
    b"SMEMBERS": CommandSpec(_smembers, 2),
    b"SISMEMBER": CommandSpec(_sismember, 3),
    b"SCARD": CommandSpec(_scard, 2),
}
