"""Sends answers to clients after the commit, outside the transaction, and only to reply topics that exist."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

from leftfold.codec import JSON
from leftfold.engine.batch import Reply
from leftfold.engine.reply import ack
from leftfold.kafka.logs import QuietLog
from leftfold.position import Position

__all__ = ["Replies"]

_ACK = [("ce_specversion", b"1.0"), ("ce_type", b"leftfold.ack.v1"), ("content-type", JSON)]
_NACK = [("ce_specversion", b"1.0"), ("ce_type", b"leftfold.nack.v1"), ("content-type", JSON)]


# What Kafka allows in a topic's name; anything else is not even asked for.
_TO = re.compile(rb"([a-zA-Z0-9._-]{1,240}\.replies)/([0-9]{1,6})")


class Replies:
    """An idempotent producer of answers; one that cannot be sent is counted, since the client may ask again.

    Args:
        partitions: how many partitions a topic has, 0 when it does not exist; asked once per topic and then again
            only for partitions that are not there.
    """

    def __init__(self, config: Mapping[str, Any], partitions: Callable[[str], int], counts: Counter[str]) -> None:
        self._producer = Producer(
            {
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 10,
                "queue.buffering.max.messages": 1_000_000,
                "delivery.report.only.error": True,
                "partitioner": "murmur2_random",
                **config,
            },
            logger=QuietLog("answers"),
        )
        self._partitions, self._counts = partitions, counts
        self._places: dict[bytes, tuple[str, int] | None] = {}

    def send(self, replies: Iterable[Reply], topic: str, ends: Mapping[int, int]) -> None:
        """Sends the answers of a committed batch; `ends` are the ends of `topic` known now, by partition."""
        positions = {p: Position.at(topic, p, end).to_json() for p, end in ends.items()}
        for reply in replies:
            place = self._place(reply.to)
            if place is None:
                self._counts["replies_unanswerable"] += 1
                continue
            if reply.error is None:
                value = ack(reply.version, reply.events, positions.get(reply.partition, "{}"))
                headers: Any = [*_ACK, ("ce_causationid", reply.command_id)]
            else:
                value = json.dumps(reply.error, separators=(",", ":")).encode()
                headers = [*_NACK, ("ce_causationid", reply.command_id)]
            try:
                self._producer.produce(place[0], value, None, place[1], headers=headers)
            except (KafkaException, BufferError):
                self._counts["replies_lost"] += 1
                self._producer.poll(0.01)
        self._producer.poll(0)

    def flush(self, timeout: float) -> None:
        """Waits for what is under way."""
        self._producer.flush(timeout)

    def _place(self, to: bytes) -> tuple[str, int] | None:
        if to not in self._places:
            if len(self._places) > 10_000:
                self._places.clear()
            self._places[to] = self._checked(to)
        return self._places[to]

    def _checked(self, to: bytes) -> tuple[str, int] | None:
        """`topic/partition`, if it is an existing partition of a reply topic."""
        found = _TO.fullmatch(to)
        if found is None:
            return None
        topic, partition = found[1].decode(), int(found[2])
        return (topic, partition) if partition < self._partitions(topic) else None
