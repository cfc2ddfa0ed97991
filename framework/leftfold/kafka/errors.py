"""Translates librdkafka's errors to Leftfold errors, and limits its log lines."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from leftfold.errors import ContractError, Fenced, InfrastructureError, LeftfoldError, refused

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

__all__ = [
    "FENCED", "NOT_ALLOWED", "OUT_OF_RANGE", "TOO_LARGE", "UNREACHABLE", "QuietLog", "Unreachable", "code_of",
    "committed_offsets", "kafka_error", "translated",
]  # fmt: skip


FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.FENCED_INSTANCE_ID}
)
UNREACHABLE = frozenset({
    KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE,
    KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT,
})  # fmt: skip
_NO_TOPIC = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART})
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
NOT_ALLOWED = frozenset({
    KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError._SSL,
})  # fmt: skip


class Unreachable(InfrastructureError):
    """No broker answers at the address."""


def kafka_error(error: KafkaException | KafkaError) -> KafkaError:
    """The KafkaError, taken out of a KafkaException if needed."""
    return error.args[0] if isinstance(error, KafkaException) else error


def code_of(error: BaseException | None) -> int:
    """The client's code of an error, or of the one behind a translated error; 0 if there is none."""
    cause = error.__cause__ if isinstance(error, LeftfoldError) else error
    first = cause.args[0] if cause is not None and cause.args else None
    return int(first.code()) if isinstance(first, KafkaError) else 0


def translated(
    error: KafkaException | KafkaError,
    *,
    doing: str,
    brokers: str = "",
    waited: float | None = None,
    advice: str = "is the address right, and does it run?",
) -> LeftfoldError:
    """The Leftfold error for a Kafka error, for the caller to raise from the original.

    Args:
        doing: what was tried, as the message's first words. brokers: the addresses of the brokers.
        waited: seconds waited for an answer. advice: what to do when no broker answers.
    """
    inner = kafka_error(error)
    code, text = inner.code(), f"{doing}: {inner.str()} ({inner.name()})"
    if code in FENCED:
        return Fenced(f"{text}; another process has taken over, so this one must end")
    if code in UNREACHABLE:
        within = f" within {waited:g} s" if waited is not None else ""
        return Unreachable(f"no broker at {brokers or 'the configured address'} answered{within}: {text}; {advice}")
    if code in _NO_TOPIC:
        return InfrastructureError(f"{text}; create the topics of the App that owns it: leftfold topics ensure")
    if code in TOO_LARGE:
        return ContractError(f"{text}; send less at once, or raise max.message.bytes of the topic")
    if code in NOT_ALLOWED:
        return refused(text)
    return InfrastructureError(text)


def committed_offsets(consumer: Consumer, wanted: list[TopicPartition], timeout: float) -> list[TopicPartition]:
    """The committed offsets of partitions.

    Raises:
        KafkaException: the request failed, or that of one partition.
    """
    found = consumer.committed(wanted, timeout=timeout)
    if failed := next((tp.error for tp in found if tp.error is not None), None):
        raise KafkaException(failed)
    return found


_log = logging.getLogger("leftfold.kafka")
_AGAIN = 30.0
_MOST = 100


class QuietLog(logging.Logger):
    """The logger of one Kafka client, which passes each kind of line on once in 30 s.

    Lines go to the logger `leftfold.kafka`, as warnings at most. librdkafka repairs its connections by itself, so its
    log errors count as warnings here; real errors are raised.

    Args:
        ignored: lines with this text are dropped; '' = none.
    """

    def __init__(self, client: str, *, ignored: str = "") -> None:
        super().__init__(client)
        self._ignored = ignored
        self._seen: dict[str, float] = {}

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # as logging calls it
        """Always true: log lines also control the client's owner, which `logging.disable` must not affect."""
        return True

    def handle(self, record: logging.LogRecord) -> None:
        """Passes the line on, unless one of its kind was passed on in the last 30 s."""
        line = record.getMessage()
        if self._ignored and self._ignored in line:
            return
        kind, now = line.split(" ", 1)[0], time.monotonic()
        if now - self._seen.get(kind, -_AGAIN) < _AGAIN:
            return
        if len(self._seen) >= _MOST:
            self._seen.clear()
        self._seen[kind] = now
        _log.log(min(record.levelno, logging.WARNING), "%s: %s", self.name, line)
