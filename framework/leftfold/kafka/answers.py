"""Reads the answers to a client's commands on a thread of its own."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, TopicPartition

from leftfold.kafka.errors import NOT_ALLOWED, translated
from leftfold.kafka.logs import QuietLog
from leftfold.kafka.pending import Pending
from leftfold.kafka.records import KafkaMessage, raw
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.unpacking import is_packed, read_behind, stand_in

__all__ = ["Answers"]

_MANY = 500
_IDLE = 0.1
_log = logging.getLogger(__name__)


class Answers:
    """Follows one partition of a reply topic from where it ends now, and resolves what is pending.

    Args:
        partitions: of the reply topic. tick: called in the reading thread, ten times a second at least.
    """

    def __init__(
        self, settings: KafkaSettings, topic: str, partitions: int, pending: Pending, tick: Callable[[], None]
    ) -> None:
        self.refusal = ""
        """Why the brokers give it no answers."""
        self._pending, self._tick, self._packed = pending, tick, settings.librdkafka()
        self._consumer = Consumer(_config(settings), logger=QuietLog("replies"))
        place = TopicPartition(topic, random.randrange(partitions))
        self.reply_to = f"{topic}/{place.partition}".encode()
        try:
            place.offset = self._consumer.get_watermark_offsets(place, timeout=settings.request_timeout)[1]
            self._consumer.assign([place])
        except KafkaException as error:
            self._consumer.close()
            raise translated(
                error,
                doing=f"reading {topic}",
                brokers=settings.bootstrap_servers,
                waited=settings.request_timeout,
            ) from error
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"leftfold answers {topic}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops reading."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                first = self._consumer.poll(_IDLE)
                self._tick()
                if first is not None:
                    self._take_all([first, *self._consumer.consume(_MANY, 0)])
            except Exception:  # noqa: BLE001  # who waits is told at the deadline; the next answers may be readable
                _log.exception("reading answers")
                self._stop.wait(_IDLE)

    def _take_all(self, messages: Iterable[KafkaMessage]) -> None:
        """Takes each by itself: anybody who may write to the topic can have written one that nobody can read."""
        for message in messages:
            try:
                self._take(message)
            except Exception:  # noqa: BLE001  # those behind it are for others
                _log.exception("reading an answer")

    def _take(self, message: KafkaMessage) -> None:
        error = message.error()
        if is_packed(message):
            # Nobody can tell what is in it; it must not keep back the answers behind it.
            read_behind(self._consumer, stand_in(self._packed, message))
        if error is not None:
            _log.warning("reading answers: %s", error)
            if error.code() in NOT_ALLOWED:
                self.refusal = str(translated(error, doing="no answer can be read"))
            return
        self.refusal = ""
        answer = raw(message)
        for name, value in reversed(answer.headers):
            if name == "ce_causationid" and isinstance(value, bytes):
                self._pending.resolve(value, answer.value or b"")
                return


def _config(settings: KafkaSettings) -> dict[str, object]:
    return {
        **settings.librdkafka(),
        "group.id": f"leftfold.replies.{uuid4()}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Answers are written outside transactions; nobody's open transaction may hold them back.
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "earliest",
        "check.crcs": True,
        "fetch.queue.backoff.ms": 2,
        # Answers are short, and whoever may write to the topic can write more than this client takes.
        "queued.max.messages.kbytes": 16_384,
        "reconnect.backoff.max.ms": 1000,
    }
