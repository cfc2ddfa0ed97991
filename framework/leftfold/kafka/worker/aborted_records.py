"""Notes of what a transaction has committed, and the records that were lost although a note says so."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import TypeAlias

from confluent_kafka import Consumer, TopicPartition

from leftfold.engine.processing.stream_state import MARK, SETTLING
from leftfold.kafka.records import raw
from leftfold.kafka.worker.transaction_log import records_between
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import HANDLED_OFFSET, SOURCE, Outgoing, Write
from leftfold.ports.protocols import RawRecord

__all__ = ["Span", "lost_records", "read_settling", "settling_note"]

Span: TypeAlias = tuple[int, int, str]
"""The first offset and the end of committed records, and the id of their topic ('' = not known)."""
_LONGEST = 2_000_000
"""The most records of a transaction: what the queue of a worker's producer holds."""
_SETTLING_TYPE = dict(SETTLING)["ce_type"]


def settling_note(partition: int, spans: Mapping[str, Span]) -> Outgoing:
    """The note that these records, by topic, are committed."""
    return Outgoing(partition, MARK, json.dumps(spans).encode(), SETTLING)


def read_settling(record: RawRecord) -> dict[str, Span]:
    """What is committed by a note that `Hanging` writes before it ends a transaction: offsets and topic id, by topic.

    Empty if the record, which any client with write access may have written, is no such note.
    """
    if record.key != MARK or header(record.headers, "ce_type") != _SETTLING_TYPE:
        return {}
    try:
        noted = {topic: (begin, end, id_) for topic, (begin, end, id_) in json.loads(record.value or b"").items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    spans = all(
        type(begin) is type(end) is int and 0 <= begin < end <= begin + _LONGEST for begin, end, _ in noted.values()
    )
    return noted if spans and all(isinstance(id_, str) for _, _, id_ in noted.values()) else {}


def lost_records(
    stable: Consumer,
    uncommitted: Consumer,
    partition: int,
    noted: Iterable[tuple[str, Span]],
    ids: Mapping[str, str],
) -> list[Write]:
    """What was committed by these notes, but aborted with the transaction that should have ended it, by topic.

    A record is not lost if one of the same id, or of the same key where records have none, was committed since, or an
    event of the same version. Notes about a topic that has another id now do not count, and neither does a note behind
    which a checkpoint or the end of its transaction was committed: nothing was lost then, and what aborted lies between
    its offsets was written by others.
    """
    lost: dict[str, dict[bytes, Outgoing]] = {}
    for topic, (begin, end, id_) in noted:
        if id_ not in ("", ids.get(topic, id_)):
            continue
        place = TopicPartition(topic, partition)
        start = max(begin, uncommitted.get_watermark_offsets(place, timeout=5.0)[0])
        stable_end = stable.get_watermark_offsets(place, timeout=5.0)[1]
        found = {
            _identities(record)[0]: record
            for record in _records(uncommitted, place, start, end)
            if record.key != MARK and not header(record.headers, HANDLED_OFFSET)
        }
        committed = set[bytes]()
        for record in _records(stable, place, start, stable_end) if found else ():
            if is_over(record, end):
                found.clear()
                break
            committed.update(_identities(record))
        for identity, record in found.items():
            if committed.isdisjoint(_identities(record)):
                out = Outgoing(partition, record.key, record.value, list(record.headers))
                lost.setdefault(topic, {})[identity] = out
    return [(topic, list(found.values())) for topic, found in lost.items()]


def is_over(record: RawRecord, end: int) -> bool:
    """Whether a committed record shows that the transaction of a note that ends here was ended, not aborted."""
    return record.key == MARK and record.offset >= end and header(record.headers, "ce_type") != _SETTLING_TYPE


def _records(consumer: Consumer, place: TopicPartition, start: int, end: int) -> Iterator[RawRecord]:
    with closing(records_between(consumer, place, start, end)) as records:
        yield from map(raw, records)


def _identities(record: RawRecord) -> list[bytes]:
    """The source of a dead letter, the id and the version of an event, or the key of a state."""
    if source := header(record.headers, SOURCE):
        return [source]
    if id_ := header(record.headers, "ce_id"):
        return [id_, b"%b/%b" % (record.key or b"", header(record.headers, "ce_sequence"))]
    return [record.key or b""]
