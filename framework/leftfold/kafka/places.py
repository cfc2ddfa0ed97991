"""Places of a reaction that no broker forgets: where it began, and which parked events were tried again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, Producer

from leftfold.engine.received import now_text
from leftfold.errors import ContractError, InfrastructureError
from leftfold.kafka.errors import translated
from leftfold.kafka.logs import QuietLog
from leftfold.kafka.reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings

__all__ = ["Place", "RecordedPlaces"]

Place: TypeAlias = tuple[str, int]
_SECONDS = 20.0


class RecordedPlaces:
    """The compacted topic `{reaction}.begun`: an offset for each partition of some topics.

    Offsets of a group will not do alone: brokers forget them when nobody uses the group for a week.
    """

    def __init__(self, topic: str, settings: KafkaSettings) -> None:
        self._topic, self._settings = topic, settings
        self.ids: dict[Place, str] = {}
        """The ids of the topics of what was read; older records have none."""

    def read(self) -> dict[Place, int]:
        """Everything that was written, the last of each partition.

        Raises:
            ContractError: somebody else has written there. InfrastructureError: no broker answers.
        """
        log, found = KafkaLogReader(self._settings), dict[Place, int]()
        try:
            ends = log.ends([self._topic])
            log.seek(log.starts([self._topic]))
            while not log.position().covers(ends):
                for record in log.poll(500, 1.0):
                    try:
                        topic, _, partition = (record.key or b"").decode().rpartition("/")
                        fields = json.loads(record.value or b"")
                        found[topic, int(partition)] = int(fields["offset"])
                        self.ids[topic, int(partition)] = str(fields.get("topic_id", ""))
                    except (ValueError, KeyError, TypeError, RecursionError) as error:
                        where = f"{self._topic}[0]@{record.offset}"
                        raise ContractError(f"{where} is no place of a reaction: {error!r}") from error
        finally:
            log.close()
        return found

    def write(self, offsets: Mapping[Place, int], ids: Mapping[str, str] | None = None) -> None:
        """Writes these, with the ids of their topics where they are known, and waits for it.

        Raises:
            InfrastructureError: they are not written. ConfigurationError: this login may not.
        """
        if not offsets:
            return
        failures: list[KafkaError] = []
        producer = Producer(
            {
                **self._settings.librdkafka(),
                "enable.idempotence": True,
                "delivery.timeout.ms": int(_SECONDS * 1000),
            },
            logger=QuietLog("reaction"),
        )
        for (topic, partition), offset in offsets.items():
            fields: dict[str, Any] = {"offset": offset, "at": now_text().decode()}
            if id_ := (ids or {}).get(topic, ""):
                fields["topic_id"] = self.ids[topic, partition] = id_
            value = json.dumps(fields, separators=(",", ":"))
            producer.produce(
                self._topic,
                value.encode(),
                f"{topic}/{partition}".encode(),
                0,
                on_delivery=lambda error, _: failures.append(error) if error is not None else None,
            )
        left = producer.flush(_SECONDS + 1.0)
        if failures:
            raise translated(failures[0], doing=f"writing a place of the reaction to {self._topic}")
        if left:
            raise InfrastructureError(f"{self._topic}: a place of the reaction is not written: no answer")
