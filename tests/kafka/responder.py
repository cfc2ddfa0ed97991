"""A worker's outside without its inside: reads commands and answers them as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from leftfold.engine.processing.command_wire import ack, nack
from leftfold.errors import LeftfoldError
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.position import Position
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import RawRecord
from tests.threads import Background
from tests.waiting import WAIT_SECONDS

__all__ = ["Responder", "accepted", "refused"]

Script = Callable[[RawRecord], list[bytes]]


def accepted(version: int, events: int = 1) -> bytes:
    """The answer to an accepted command."""
    return ack(version, events, Position.at("baskets.events", 0, version).to_json())


def refused(error: LeftfoldError) -> bytes:
    """The answer to a refused command."""
    return json.dumps(nack(error)).encode()


class Responder(Background):
    """Answers the commands of a topic that arrive while it is entered: `script` gives the answers to each."""

    def __init__(self, settings: KafkaSettings, topic: str, script: Script) -> None:
        super().__init__(self._respond)
        self._script, self._reader = script, KafkaLogReader(settings)
        self._producer = Producer({**settings.librdkafka(), "linger.ms": 1})
        self._reader.seek(self._reader.ends([topic]))
        self.seen: list[RawRecord] = []

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        super().__exit__(kind, *more)
        self._producer.flush(WAIT_SECONDS)
        self._reader.close()

    def _respond(self, stop: threading.Event) -> None:
        while not stop.is_set():
            for record in self._reader.poll(200, 0.05):
                self.seen.append(record)
                for value in self._script(record):
                    self._answer(record, value)
            self._producer.poll(0)

    def _answer(self, record: RawRecord, value: bytes) -> None:
        topic, _, partition = header(record.headers, "reply_to").decode().rpartition("/")
        headers: list[Any] = [
            ("ce_specversion", b"1.0"),
            ("ce_type", b"leftfold.nack.v1" if b'"error"' in value else b"leftfold.ack.v1"),
            ("content-type", b"application/json"),
            ("ce_causationid", header(record.headers, "ce_id")),
        ]
        self._producer.produce(topic, value, None, int(partition), headers=headers)
