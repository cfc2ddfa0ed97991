"""Puts the grocery chain's commands into Kafka, as fast as one producer can."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from confluent_kafka import Producer

from leftfold.engine.processing.command_wire import command_headers, now_text
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.codec import MessageCodec
from services.baskets.commands import BasketCommand
from services.baskets.domain import baskets
from services.baskets.history import history

__all__ = ["feed"]


def feed(settings: KafkaSettings, count: int, *, reply_to: bytes = b"", skip: int = 0, traceparent: str = "") -> int:
    """Writes that many commands of the year, in time order, and waits until they are in; returns how many."""
    producer = Producer(
        {
            **settings.librdkafka(),
            "partitioner": "murmur2_random",
            "linger.ms": 50,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    codec: MessageCodec[Any] = MessageCodec(baskets.commands)
    written = 0
    for id_, command in islice(_commands(), skip, skip + count):
        headers: Any = command_headers(
            command,
            id=id_,
            source="baskets",
            at=now_text(),
            type_=codec.types[type(command)],
            reply_to=reply_to,
            traceparent=traceparent,
        )
        key = command.basket_id.encode()
        producer.produce(names.commands("baskets"), codec.encode(command), key, headers=headers)
        written += 1
        if written % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    return written


def _commands() -> Iterable[tuple[str, BasketCommand]]:
    return history()
