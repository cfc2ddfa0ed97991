"""Commands in flight: bounds their number, reads their answers in a thread, and explains timeouts."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, TopicPartition

from leftfold.client.packing import EncodedCommand
from leftfold.engine.processing.command_wire import DIGEST, command_digest
from leftfold.errors import ContractError, InfrastructureError, LeftfoldError, OutcomeUnknown
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.client.command_producer import CommandProducer, no_room
from leftfold.kafka.errors import NOT_ALLOWED, QuietLog, translated
from leftfold.kafka.records import KafkaMessage, is_packed, raw, read_behind, stand_in
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.notifications import MAX_WAIT, EndedWaiters

__all__ = ["Answers", "CommandAnswer", "PendingAnswers", "PipelinedSender", "TimeoutDiagnosis"]


CommandAnswer: TypeAlias = bytes | LeftfoldError
_Body: TypeAlias = tuple[bytes, bytes, int | None]


class AnswerWaiter(Protocol):
    """A caller that waits for an answer."""

    def resolve(self, answer: CommandAnswer) -> None:
        """Receives the answer, in the thread that has read it; it must not block."""


class _SentCommand(NamedTuple):
    body: _Body
    waiter: AnswerWaiter


class PendingAnswers:
    """The waiters for answers by command id; thread-safe."""

    def __init__(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()
        self._ended: EndedWaiters[tuple[bytes, AnswerWaiter]] = EndedWaiters(self._lock, self._remove)
        self._waiting: dict[bytes, list[_SentCommand]] = {}
        self.is_closed = False
        """Whether it takes no more waiters."""

    def add(self, id_: bytes, body: _Body, waiter: AnswerWaiter) -> None:
        """Registers a waiter; a command that is sent again may have several.

        Raises:
            ContractError: a different command with this id is in flight, and answers could not be distinguished.
            InfrastructureError: it is closed or of another process, and no answer would come.
        """
        self.check_open()  # before the lock too: a process may be forked while it is held
        with self._lock:
            self._ended.remove()
            if self.is_closed:
                self.check_open()
            waiting = self._waiting.get(id_)
            if waiting is None:
                self._waiting[id_] = [_SentCommand(body, waiter)]
            elif waiting[0].body == body:
                waiting.append(_SentCommand(body, waiter))
            else:
                raise ContractError(
                    f"command id {id_.decode()!r} belongs to another command that is still under way; "
                    f"every command needs an id of its own"
                )

    def remove(self, id_: bytes, waiter: AnswerWaiter) -> None:
        """Removes a waiter, unless it has been resolved already."""
        self._ended.add((id_, waiter))

    def resolve(self, id_: bytes, answer: CommandAnswer, digest: bytes = b"") -> None:
        """Gives an answer to all its waiters; one without a waiter, or to another command with this id, is ignored.

        Args:
            digest: of the command that is answered; older workers do not name it.
        """
        with self._lock:
            self._ended.remove()
            waiting = self._waiting.get(id_, ())
            if not waiting or (digest and digest != _digest(waiting[0].body)):
                return
            del self._waiting[id_]
        for one in waiting:
            one.waiter.resolve(answer)

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one that connected: the threads that send and read are not here."""
        return os.getpid() != self._process

    def check_open(self) -> None:
        """Checks that answers are still read.

        Raises:
            InfrastructureError: they are not.
        """
        if self.is_closed:
            raise InfrastructureError("this client is closed; nothing was sent")
        if self.is_forked:
            raise InfrastructureError(
                f"this client was connected in process {self._process}, from which this one was forked; nothing was "
                f"sent. Connect in the forked process: connect(app)"
            )

    def close(self) -> None:
        """Takes no more waiters; those that it has still wait."""
        with self._lock:
            self.is_closed = True

    def give_up(self, why: str) -> None:
        """Resolves all waiters with OutcomeUnknown, since no answer will come."""
        with self._lock:
            ids = list(self._waiting)
        for id_ in ids:
            self.resolve(id_, OutcomeUnknown(id_.decode(), why))

    def _remove(self, ended: tuple[bytes, AnswerWaiter]) -> None:
        id_, waiter = ended
        left = [waiting for waiting in self._waiting.pop(id_, ()) if waiting.waiter is not waiter]
        if left:
            self._waiting[id_] = left


def _digest(body: _Body) -> bytes:
    _, value, expected = body
    return command_digest(value, None if expected is None else b"%d" % expected).encode()


_MANY = 500
_IDLE = 0.1
_log = logging.getLogger(__name__)


class Answers:
    """Reads one partition of a reply topic from its current end, and resolves pending answers.

    Args:
        partitions: the partition count of the reply topic.
        tick: called in the reading thread, at least ten times a second.
    """

    def __init__(
        self, settings: KafkaSettings, topic: str, partitions: int, pending: PendingAnswers, tick: Callable[[], None]
    ) -> None:
        self.refusal = ""
        """Why the brokers refuse reading answers, or ''."""
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
                error, doing=f"reading {topic}", brokers=settings.bootstrap_servers, waited=settings.request_timeout
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
            except Exception:  # noqa: BLE001  # waiters get an error at their deadline; later answers may be readable
                _log.exception("reading answers")
                self._stop.wait(_IDLE)

    def _take_all(self, messages: Iterable[KafkaMessage]) -> None:
        """Reads each message on its own, since any client with write access may have written an unreadable one."""
        for message in messages:
            try:
                self._take(message)
            except Exception:  # noqa: BLE001  # later answers are for other waiters
                _log.exception("reading an answer")

    def _take(self, message: KafkaMessage) -> None:
        error = message.error()
        if is_packed(message):
            # Its content cannot be read, and it must not block the answers after it.
            read_behind(self._consumer, stand_in(self._packed, message))
        if error is not None:
            _log.warning("reading answers: %s", error)
            if error.code() in NOT_ALLOWED:
                self.refusal = str(translated(error, doing="no answer can be read"))
            return
        self.refusal = ""
        answer = raw(message)
        headers = dict(answer.headers)
        if id_ := headers.get("ce_causationid"):
            self._pending.resolve(id_, answer.value or b"", headers.get(DIGEST) or b"")


def _config(settings: KafkaSettings) -> dict[str, object]:
    return {
        **settings.librdkafka(),
        "group.id": f"leftfold.replies.{uuid4()}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Answers are written outside transactions; an open transaction of another client must not hold them back.
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "earliest",
        "check.crcs": True,
        "fetch.queue.backoff.ms": 2,
        # Answers are short; the limit protects this client from other writers to the topic.
        "queued.max.messages.kbytes": 16_384,
        "reconnect.backoff.max.ms": 1000,
    }


class _Flight:
    """One command in flight."""

    __slots__ = ("answer", "burst", "deadline", "id", "topic")

    def __init__(self, burst: PipelinedSender, topic: str, id_: bytes, deadline: float) -> None:
        self.burst, self.topic, self.id, self.deadline = burst, topic, id_, deadline
        self.answer: CommandAnswer | None = None

    def resolve(self, answer: CommandAnswer) -> None:
        """Sets the answer and wakes the sender.

        The answer is set before `awaited` is read; the sender sets `awaited` before it reads the answer.
        """
        self.answer = answer
        if self.burst.awaited is self:
            with self.burst.changed:
                self.burst.changed.notify()


class PipelinedSender:
    """Sends commands without waiting in between, and returns their answers in order.

    Args:
        timeout: seconds that each answer may take. most: maximum number of commands in flight.
        why: returns the reason why a topic's commands are not answered; called after a deadline has passed.
    """

    def __init__(
        self,
        producer: CommandProducer,
        pending: PendingAnswers,
        why: Callable[[str], str],
        *,
        timeout: float,
        most: int,
    ) -> None:
        self._producer, self._pending, self._why = producer, pending, why
        self._timeout, self._most = timeout, most
        self._flights: deque[_Flight] = deque()
        self.changed = threading.Condition()
        self.awaited: _Flight | None = None

    def run(self, commands: Iterable[EncodedCommand | LeftfoldError]) -> Iterator[CommandAnswer]:
        """Sends commands and yields their answers in order; an error in place of a command is its own answer."""
        flights = self._flights
        try:
            for encoded in commands:
                self._send(encoded)
                while flights and (len(flights) >= self._most or flights[0].answer is not None):
                    yield self._next_answer()
            while flights:
                yield self._next_answer()
        finally:
            for flight in flights:
                self._pending.remove(flight.id, flight)

    def _send(self, encoded: EncodedCommand | LeftfoldError) -> None:
        deadline = time.monotonic() + self._timeout
        if isinstance(encoded, LeftfoldError):
            flight = _Flight(self, "", b"", deadline)
            flight.answer = encoded
            self._flights.append(flight)
            return
        flight = _Flight(self, encoded.topic, encoded.id, deadline)
        self._flights.append(flight)
        try:
            self._pending.add(encoded.id, encoded.body, flight)
            if not self._producer.put_by(encoded, deadline):
                raise no_room(encoded, self._timeout)
        except LeftfoldError as error:
            self._pending.remove(encoded.id, flight)
            flight.answer = error

    def _next_answer(self) -> CommandAnswer:
        """Waits for the answer to the oldest command, until its deadline."""
        flight = self._flights[0]
        if flight.answer is None:
            with self.changed:
                self.awaited = flight
                left = min(flight.deadline - time.monotonic(), MAX_WAIT)
                self.changed.wait_for(lambda: flight.answer is not None, left)
                self.awaited = None
        answer = flight.answer if flight.answer is not None else self._overdue(flight)
        self._flights.popleft()
        return answer

    def _overdue(self, flight: _Flight) -> CommandAnswer:
        why = self._why(flight.topic)
        self._pending.remove(flight.id, flight)
        # The answer may have arrived while the reason was looked up.
        return flight.answer if flight.answer is not None else OutcomeUnknown(flight.id.decode(), why)


_ASK_SECONDS = 1.0
_KEEP_SECONDS = 5.0


class TimeoutDiagnosis:
    """Explains timeouts by the workers of a category; commands that time out together share one request."""

    def __init__(self, cluster: ClusterAdmin) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str]] = {}

    def why(self, category: str) -> str:
        """The reason why commands of a category are not answered, with a command to type."""
        with self._lock:
            asked, reason = self._known.get(category, (-_KEEP_SECONDS, ""))
            if time.monotonic() - asked > _KEEP_SECONDS:
                reason = self._ask(category)
                self._known[category] = time.monotonic(), reason
            return reason

    def _ask(self, category: str) -> str:
        topic, start = names.commands(category), f"start one: leftfold run {category}"
        try:
            owners = self._cluster.owners(category, timeout=_ASK_SECONDS)
        except LeftfoldError as error:
            return f"no answer before the deadline ({error})"
        if not owners:
            return f"no worker owns {topic} (there is no group of workers); {start}"
        groups = ", ".join(f"{group} has {members}" for group, members in sorted(owners.items()))
        if not any(owners.values()):
            return f"no worker owns {topic} (group {groups} members); {start}"
        return f"no answer before the deadline, though group {groups} members; how far behind are they? leftfold status"
