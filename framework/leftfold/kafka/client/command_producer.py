"""Encodes commands, produces them to their topics, and reports failed deliveries."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from leftfold.client.commands import CommandRequest
from leftfold.client.packing import CommandPacker, EncodedCommand
from leftfold.engine.processing.command_wire import DELIVERY_SECONDS, deadline_header, now_text
from leftfold.errors import InfrastructureError, LeftfoldError, OutcomeUnknown
from leftfold.kafka.errors import NOT_ALLOWED, TOO_LARGE, QuietLog, kafka_error, translated
from leftfold.kafka.records import KafkaMessage
from leftfold.kafka.settings import KafkaSettings

__all__ = ["CommandProducer", "no_room"]

_FULL_WAIT = 0.05
_DEFINITE = TOO_LARGE | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}


def no_room(encoded: EncodedCommand, seconds: float) -> InfrastructureError:
    """The error for a queue of unsent commands that stayed full."""
    return InfrastructureError(
        f"command {encoded.id.decode()} was not sent: for {seconds:g} s there was no room for it behind the ones "
        f"before it; is the broker there? leftfold doctor"
    )


class CommandProducer:
    """An idempotent producer of commands.

    Args:
        source: the App on whose behalf commands are sent.
        undelivered: called with the id of each command that was not delivered and the reason, in the thread that calls
            `poll`.
        delivery: seconds after which an undelivered command fails.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        source: str,
        undelivered: Callable[[bytes, LeftfoldError], None],
        delivery: float = DELIVERY_SECONDS,
    ) -> None:
        self._delivery = delivery
        self._settings, self._undelivered = settings, undelivered
        self._packer = CommandPacker(source, now_text)
        self._lock = threading.Lock()
        self._errors: deque[KafkaError] = deque(maxlen=8)
        self._producer = self._new()

    def pack(self, request: CommandRequest, reply_to: bytes) -> EncodedCommand:
        """Encodes a command as a record; see CommandPacker."""
        return self._packer.pack(request, reply_to)

    def put(self, encoded: EncodedCommand) -> bool:
        """Enqueues a command for the network thread; False if the queue is full.

        Raises:
            ContractError: the command exceeds the maximum size of a record.
            InfrastructureError: the producer cannot accept it; nothing was sent.
        """
        topic, id_, key, value, headers, _ = encoded
        headers = [*headers, deadline_header(time.time(), self._delivery)]
        try:
            self._producer.produce(topic, value, key, on_delivery=partial(self._lost, id_), headers=headers)
        except BufferError:
            return False
        except KafkaException as error:
            # `produce` shows a fatal error by its code only.
            if kafka_error(error).fatal() or kafka_error(error).code() == KafkaError._FATAL:
                self._replace()
            raise self._translated(error, f"sending command {id_.decode()}") from error
        return True

    def put_by(self, encoded: EncodedCommand, deadline: float) -> bool:
        """Enqueues a command, and waits for room until a `time.monotonic()` deadline; False if there was none."""
        while not self.put(encoded):
            if time.monotonic() > deadline:
                return False
            self._serve(self._producer.poll, _FULL_WAIT)
        return True

    def poll(self) -> None:
        """Serves delivery reports."""
        self._serve(self._producer.poll, 0.0)

    def close(self, timeout: float) -> None:
        """Waits for pending deliveries, `timeout` seconds at most."""
        self._serve(self._producer.flush, timeout)

    def _serve(self, serve: Callable[[float], object], seconds: float) -> None:
        """Serves callbacks of the producer; after a fatal error, the next `put` replaces the producer."""
        try:
            serve(seconds)
        except KafkaException as error:
            self._errors.append(kafka_error(error))
        except (AttributeError, SystemError):
            # With a fatal error pending, confluent-kafka may fail at its last log line instead.
            pass

    def _lost(self, id_: bytes, error: KafkaError | None, message: KafkaMessage) -> None:
        if error is None:
            return
        if error.code() in _DEFINITE:
            self._undelivered(id_, self._translated(error, f"sending command {id_.decode()}"))
        else:
            why = self._refusal() or error.str()
            self._undelivered(id_, OutcomeUnknown(id_.decode(), f"it was not seen to arrive: {why}"))

    def _refusal(self) -> str:
        """Why the brokers refuse this producer, or ''."""
        refused = next((error for error in self._errors if error.code() in NOT_ALLOWED), None)
        return "" if refused is None else str(self._translated(refused, "sending commands"))

    def _translated(self, error: KafkaException | KafkaError, doing: str) -> LeftfoldError:
        settings = self._settings
        return translated(error, doing=doing, brokers=settings.bootstrap_servers, advice=settings.advice)

    def _replace(self) -> None:
        """Replaces the producer after a fatal error; a new idempotent producer starts new sequence numbers."""
        with self._lock:
            self._producer = self._new()

    def _new(self) -> Producer:
        self._errors.clear()
        config: dict[str, Any] = {
            **self._settings.librdkafka(),
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "linger.ms": 0,
            "message.timeout.ms": int(1000 * self._delivery),
            "retry.backoff.ms": 20,
            "reconnect.backoff.max.ms": 1000,
            "socket.nagle.disable": True,
            "delivery.report.only.error": True,
        }
        return Producer(config, logger=QuietLog("commands"))
