"""What nobody could take, as it is kept for people: with the reason, and where it stands."""

from __future__ import annotations

from leftfold.engine.batch import HeaderList, Outgoing
from leftfold.ports import RawRecord

__all__ = ["dead_letter"]

_LONGEST = 2000


def dead_letter(record: RawRecord, why: str, partition: int, room: int) -> Outgoing:
    """The record with its original bytes; by reference, when a copy would weigh more bytes than there is `room` for."""
    source = f"{record.topic}/{record.partition}/{record.offset}".encode()
    told: HeaderList = [("dead_reason", why[:_LONGEST].encode()), ("dead_source", source)]
    headers = [*record.headers, *told]
    weight = len(record.key or b"") + len(record.value or b"") + sum(len(k) + len(v or b"") for k, v in headers)
    if weight > room:
        return Outgoing(partition, record.key, None, [*told, ("dead_reference", b"true")])
    return Outgoing(partition, record.key, record.value, headers)
