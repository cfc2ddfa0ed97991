"""Looks for transactions of dead workers that hang only where they have sent commands and answers."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from leftfold.kafka.errors import UNREACHABLE, code_of, kafka_error
from leftfold.kafka.worker.hanging_transactions import Hanging
from leftfold.ports.protocols import PartitionId

__all__ = ["SentWatch"]


_EVERY, _STUCK = 5.0, 15.0


class SentWatch:
    """Ends transactions of a category's workers that a broker forgot where they had sent something, and only there.

    One worker of the category looks from time to time: no partition of its own shows them, and those who read there
    wait for ever.

    Args:
        hanging: creates the handler of hanging transactions.
    """

    def __init__(self, hanging: Callable[[], Hanging]) -> None:
        self._hanging, self._due = hanging, 0.0
        self._seen: dict[PartitionId, tuple[int, float]] = {}

    def step(self) -> list[str]:
        """Ends what has hung for longer than a transaction may take; returns the transactional ids taken over.

        Raises:
            InfrastructureError: the brokers no longer know the outcome of a transaction.
        """
        if (now := time.monotonic()) < self._due:
            return []
        self._due, ended = now + _EVERY, []
        try:
            hanging = self._hanging()
            for place, (offset, since) in self._stuck(hanging, now).items():
                if now - since > _STUCK and (writer := hanging.end_sent(TopicPartition(*place), offset)):
                    ended.append(writer)
        except KafkaException as error:
            # A broker that is slow or unreachable is asked again at the next call.
            if not (kafka_error(error).retriable() or code_of(error) in UNREACHABLE):
                raise
        return ended

    def _stuck(self, hanging: Hanging, now: float) -> dict[PartitionId, tuple[int, float]]:
        """The last stable offsets that lie before open records, and since when each of them has been the same."""
        places = [TopicPartition(topic, p, OFFSET_END) for topic, count in hanging.sent.items() for p in range(count)]
        stable, ends = (
            {(tp.topic, tp.partition): tp.offset for tp in of.offsets_for_times(places, timeout=4.0) if not tp.error}
            for of in (hanging.stable, hanging.uncommitted)
        )
        seen = {place: (offset, now) for place, offset in stable.items() if offset < ends.get(place, offset)}
        self._seen = seen | {place: one for place, one in self._seen.items() if seen.get(place, (-1, 0))[0] == one[0]}
        return self._seen
