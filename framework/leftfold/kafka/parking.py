"""Writes events that nobody can act on to where they wait for somebody to look at them."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from leftfold import names
from leftfold.engine.pending import Pending, parked
from leftfold.errors import InfrastructureError
from leftfold.kafka.errors import translated
from leftfold.kafka.logs import QuietLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.partitioner import partition_of

__all__ = ["Parking"]

_SECONDS = 30.0
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


class Parking:
    """An idempotent producer for `{reaction}.dead`."""

    def __init__(self, reaction: str, settings: KafkaSettings, partitions: int) -> None:
        self._topic, self._partitions = names.dead(reaction), partitions
        self._producer = Producer(
            {**settings.librdkafka(), "enable.idempotence": True, "delivery.timeout.ms": int(_SECONDS * 1000)},
            logger=QuietLog("reaction"),
        )

    def park(self, pending: Pending, error: BaseException) -> None:
        """Writes the event and why, and waits until that is written; too heavy a copy is left out.

        Raises:
            InfrastructureError: it is not written.
        """
        code = self._write(pending, error, whole=True)
        if code is not None and code.code() in _TOO_LARGE:
            code = self._write(pending, error, whole=False)
        if code is not None:
            raise translated(KafkaException(code), doing=f"parking an event in {self._topic}")

    def _write(self, pending: Pending, error: BaseException, *, whole: bool) -> KafkaError | None:
        out = parked(pending, error, partition_of(pending.record.key or b"", self._partitions), whole=whole)
        failures: list[KafkaError] = []

        def heard(failure: KafkaError | None, message: Any) -> None:
            if failure is not None:
                failures.append(failure)

        try:
            self._producer.produce(
                self._topic, out.value, out.key, out.partition, headers=list(out.headers), on_delivery=heard
            )
        except KafkaException as failure:
            return KafkaError(failure.args[0].code())
        if self._producer.flush(_SECONDS + 1.0):
            raise InfrastructureError(f"an event was not parked in {self._topic} within {_SECONDS:g} s; it is not done")
        return failures[0] if failures else None
