"""How far a consumer group says that it is."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, TopicPartition

from leftfold.kafka.errors import translated
from leftfold.kafka.logs import QuietLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.position import Position

__all__ = ["committed"]


def committed(settings: KafkaSettings, group: str, places: Position) -> Position:
    """What a group has committed in the partitions that a position names; those without an offset are left out.

    Raises:
        InfrastructureError: no broker answers.
    """
    wanted = [TopicPartition(topic, p) for topic, offsets in places.offsets.items() for p in offsets]
    config = {**settings.librdkafka(), "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(config, logger=QuietLog("offsets"))
    try:
        found = consumer.committed(wanted, timeout=settings.request_timeout)
    except KafkaException as error:
        raise translated(error, doing=f"asking for the offsets of {group}") from error
    finally:
        consumer.close()
    offsets: dict[str, dict[int, int]] = {}
    for place in found:
        if place.error is not None:
            raise translated(place.error, doing=f"asking for the offsets of {group}")
        if place.offset >= 0:
            offsets.setdefault(place.topic, {})[place.partition] = place.offset
    return Position(offsets)
