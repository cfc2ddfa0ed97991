"""Records as a hostile writer may send them: a good one with its headers, key or body made worse, drawn by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import RawRecord

__all__ = ["weight", "worsened"]

_NAMES = [
    "ce_specversion", "ce_id", "ce_source", "ce_type", "ce_subject", "ce_time", "ce_correlationid", "ce_causationid",
    "content-type", "expected_version", "reply_to", "reply_key", "origin", "deadline", "traceparent",
    "ce_authid", "ce_sequence", "ce_decision", "dead_source", "dead_handled", "x",
]  # fmt: skip
_TEXTS: list[bytes | None] = [
    None, b"", b"\x00", b"a\x00b", b"\xff\xfe", b"@", b"/", b"-1", b"\xc2\xb2", b"9" * 5000, b"9" * 19, b"0", b"true",
    b"\x1b[2J", "\u202e\u2028".encode(), b"x" * 1025, b"x" * 40_000, b"x" * 600_000, b"nan", b"1e999", b"null",
    b"orders.commands", b"events", b"../x.commands", b"x.commands", b"\x00.commands", b".replies/0", b"a.replies/0",
    b"checkout.commands", b"checkout.commands/0/1/0", b"checkout.commands/0/999999999/0", b"checkout.commands/-1/1/0",
    b"checkout.commands/0/1", b"other.commands/0/1/0", b"checkout.commands/99999/1/0", b"2026-01-01T00:00:00Z",
    b"9999-12-31T23:59:59-23:59", b"0001-01-01T00:00:00+23:59", b"2026-01-01T00:00:00", b"yesterday", b"1/1", b"0/0",
    b"leftfold.barrier.v1", b"leftfold.ack.v1", b"leftfold.nack.v1", b"leftfold.due.v1", b"leftfold.cancel.v1",
]  # fmt: skip
_VALUES: list[object] = [
    None, "", "x" * 100_000, -1, 0, 1.5, 10**400, True, [], {}, [[]], "\u0000", "\x1b[31m", "\u202e",
    "9999-12-31T23:59:59-23:59", "1E+400000", "NaN", "b",
]  # fmt: skip
_BODIES: list[bytes | None] = [
    None, b"", b"{", b"\xff\x00", b"[" * 100_000, b'{"a":' * 50_000, b"null", b"[]", b'""', b"0", b"9" * 100_000,
    b'{"":{}}', b"{" + b'"k":1,' * 20_000 + b'"k":1}', b'"\\ud800"', b" " * 300_000, b"{" * 1_000_000,
]  # fmt: skip


def worsened(rng: random.Random, good: RawRecord) -> RawRecord:
    """The record with one to four things wrong, now and then with none."""
    for _ in range(rng.randrange(5)):
        good = rng.choice(_CHANGES)(rng, good)
    return good


def _without(rng: random.Random, record: RawRecord) -> RawRecord:
    name = rng.choice(_NAMES)
    return record._replace(headers=[one for one in record.headers if one[0] != name])


def _other(rng: random.Random, record: RawRecord) -> RawRecord:
    name, text = rng.choice(_NAMES), _text(rng)
    return record._replace(headers=[*(one for one in record.headers if one[0] != name), (name, text)])


def _twice(rng: random.Random, record: RawRecord) -> RawRecord:
    headers = [*record.headers, (rng.choice(_NAMES), _text(rng))]
    rng.shuffle(headers)
    return record._replace(headers=headers)


def _many(rng: random.Random, record: RawRecord) -> RawRecord:
    return record._replace(headers=[*record.headers, *((f"x{n}", b"y") for n in range(rng.randrange(200)))])


def _key(rng: random.Random, record: RawRecord) -> RawRecord:
    return record._replace(key=_text(rng))


def _body(rng: random.Random, record: RawRecord) -> RawRecord:
    if rng.random() < 0.3:
        return record._replace(value=rng.randbytes(rng.randrange(200)))
    return record._replace(value=rng.choice(_BODIES))


def _field(rng: random.Random, record: RawRecord) -> RawRecord:
    try:
        fields = json.loads(record.value or b"")
        fields[rng.choice([*fields, "more"])] = rng.choice(_VALUES)
    except (ValueError, TypeError, RecursionError):
        return record
    return record._replace(value=json.dumps(fields).encode())


def _text(rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return rng.randbytes(rng.randrange(1, 50))
    return rng.choice(_TEXTS) or b""


_CHANGES: list[Callable[[random.Random, RawRecord], RawRecord]] = [_without, _other, _twice, _many, _key, _body, _field]


def weight(out: Outgoing) -> int:
    """How many bytes a batch has that holds this record alone."""
    batch = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=1, producer_epoch=1, base_sequence=0, batch_size=1
    )
    assert batch.append(0, 1_767_225_600_000, out.key, out.value, list(out.headers)) is not None
    return len(batch.build())
