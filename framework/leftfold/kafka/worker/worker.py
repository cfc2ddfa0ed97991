"""The worker of one category: consumes, decides and writes commands exactly once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from leftfold.engine.processing.partition_processor import STATE_HEADERS, StateTooLarge
from leftfold.engine.processing.stream_state import MARK
from leftfold.engine.processing.worker_tasks import task_for
from leftfold.engine.progress import BatchReporter
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.kafka.errors import translated
from leftfold.kafka.records import KafkaMessage, nexts_of, raw
from leftfold.kafka.worker.batching import CHUNK, BatchDecider, OutOfTime, Pace
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.log_identity import Restored
from leftfold.kafka.worker.poison_pills import CLEAN, STARTED, AssignedPartition, attempt, new_token
from leftfold.kafka.worker.restore_scheduler import RestoreScheduler
from leftfold.kafka.worker.transactions import REFUSED, Aborted, Committed, Result, Unknown
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.ports.instruments import TAKE, Span, clock, member, traced
from leftfold.ports.outgoing import Batch, Outgoing, Write
from leftfold.ports.protocols import PartitionId, RawRecord, Report

__all__ = ["Worker"]

DEATHS, REFOLDED, SETTLED_SECONDS, SHARE = 3, 2000, 5.0, 0.1


class Worker:
    """Decides one category's commands until `stop` is set; several workers share its partitions.

    Args:
        supplier: creates the Kafka clients. batch: maximum number of commands per transaction.
        report: called with messages for the operator: (what, details).
    """

    def __init__(
        self,
        app: App,
        category: str,
        supplier: KafkaClientSupplier,
        *,
        stop: threading.Event,
        batch: int = 16_000,
        report: Report = lambda what, details: None,
    ) -> None:
        self._app, self._category, self._supplier, self._stop, self._report = app, category, supplier, stop, report
        self.counts = Counter[str]()
        self._task = task = task_for(app, category)
        self._commands, self._events = names.commands(category), names.events(category)
        self._state, self._dead = names.state(category, task.version), names.dead(category)
        self._served, self._last_partitions = dict[int, AssignedPartition](), set[int]()
        self._settled, self._orderly, self._careful, self._refused = 0, True, False, ""
        self._measured = member("process" if task.is_process else "decider", category)
        self._processor, self._transactions = supplier.processor(app, task), supplier.transactions(app, task)
        longest = self._transactions.longest
        self._pace = Pace(batch, SHARE * longest)
        self._deciding = BatchDecider[KafkaMessage](
            self._processor, self._pace, longest, raw, lambda most: supplier.within(most, f"deciding {self._commands}")
        )
        self._reporter = BatchReporter(category, self._measured, report, time.monotonic)
        self._replies, self._times = supplier.replies(app, self.counts, report), supplier.times(task)
        self._member = supplier.member(names.group(app.name, category), self._commands, self._leave)
        self._sent = supplier.sent_records(app, task, self._transactions, report)
        self._restores = RestoreScheduler(app, category, supplier, self._member, report)

    def run(self) -> None:
        """Runs until `stop` is set, then commits every partition as left clean.

        After an error partitions are not left clean, since a command may have caused it.

        Raises:
            Fenced: this process must end and be restarted. ConfigurationError: topics changed, or may not be written.
            InfrastructureError: a partition cannot be restored.
        """
        try:
            while not self._stop.is_set():
                self.step()
        except KafkaException as error:
            self._orderly = False
            raise translated(error, doing=f"deciding {self._commands}") from error
        except BaseException:
            self._orderly = False
            raise
        finally:
            self.close()

    def step(self, wait: float = 0.1) -> int:
        """Fetches and decides one batch, and does a step of the restores; returns the number of commands."""
        self._supplier.check_counts(self._app, self._category)
        self._replies.check()
        small = any(served.reduced_batch_remaining > 0 for served in self._served.values())
        limit = min(self._pace.limit, AssignedPartition.SMALL) if small else self._pace.limit
        messages = self._member.fetch(limit, 0.0 if self._restores else wait)
        count, nexts = 0, nexts_of(messages)
        if messages:
            try:
                count = self._take(messages)
            except KafkaException as error:
                # Only a plain commit raises here, before deciding: during a rebalance, or without a broker.
                self._rewind(nexts, str(error))
        try:
            self._fire()
        except KafkaException as error:
            self._report("timers wait", {"why": str(error)})
        if sum(self._serve(restored) for restored in self._restores.step()):
            self._report("serving", {"topic": self._commands, "partitions": sorted(self._served)})
        return count

    @property
    def served(self) -> frozenset[int]:
        """The partitions that are restored and served."""
        return frozenset(self._served)

    def _fire(self) -> None:
        """Writes due timers, in a transaction that consumes no input."""
        for watermark in self._times.poll() if self._times else ():
            self._processor.tell(watermark)
        # A commit without progress would erase the attempts of the next input, so such partitions wait.
        batch = self._processor.due({p: served.next for p, served in self._served.items() if not served.attempts})
        nexts = {out.partition: self._served[out.partition].next for sent in batch.sent.values() for out in sent}
        if nexts:
            self._begin(nexts)
            self._reporter.fired(batch)
            self._commit(nexts, batch, self._written(batch))

    def _serve(self, restored: Restored) -> bool:
        """Writes lost records again or folded states in steps, then starts serving; True if served.

        The partition is restored again if the write does not commit, or was of lost records.
        """
        partition, refold, lost = restored.partition, restored.refold, restored.lost
        if lost or refold.changed:
            states = [] if lost else refold.take(REFOLDED, self._supplier.room(self._task))
            records = [Outgoing(partition, k.encode(), v, STATE_HEADERS) for k, v in states]
            known = self._task.partly(restored.span[0], restored.start)
            commands, events = known if lost or refold.changed else (restored.start, restored.events_end)
            checkpoint = self._mark(partition, commands, events, restored)
            offset = TopicPartition(self._commands, partition, restored.start, restored.left.token or STARTED)
            result = self._run([(self._state, [checkpoint, *records]), *lost], [offset])
            if isinstance(result, Committed):
                self._supplier.wait_ended(self._transactions, result.ends)
            else:
                self._check_rights(result.why, result.code, [self._state])
                self._rewind({}, result.why)
            if not isinstance(result, Committed) and result.code in REFUSED:
                self._restores.refuse(partition, records, result.why)
            elif lost or not isinstance(result, Committed):
                self._restores.drop([partition])
            return False
        if is_served := self._member.serve((self._commands, partition), restored.start):
            self._restores.drop([partition])
            self._processor.hold(partition, refold.store, end=restored.events_end)
            self._served[partition] = AssignedPartition(
                restored.start, restored.left, state_start=restored.state_start, known=restored.known
            )
        return is_served

    def _take(self, messages: list[KafkaMessage]) -> int:
        """Decides messages within the span of their batch, which links the spans that sent them."""
        began = clock()
        links = traced(raw(message).headers for message in messages)
        with TAKE.span(self._commands, self._measured, parent="", links=links) if links else Span() as span:
            count = self._decide(messages)
            span.note({"messaging.batch.message_count": count})
        self._reporter.taken(count, clock() - began)
        return count

    def _decide(self, messages: list[KafkaMessage]) -> int:
        """Decides as many messages as the time allows, and puts the rest back; returns the number taken."""
        isolated_remaining = {p for p, served in self._served.items() if served.isolated_remaining > 0}
        alone = [m for m in messages if m.partition() in isolated_remaining] if isolated_remaining else []
        together = [m for m in messages if m.partition() not in isolated_remaining] if isolated_remaining else messages
        count = 0
        if together:
            self._begin(nexts_of(together))
            count = self._decide_together(together)
        stuck: set[int] = set()
        self._pace.begin()
        for number, record in enumerate(map(raw, alone)):
            partition = record.partition
            if self._pace.is_over:
                self._member.put_back([m for m in alone[number:] if m.partition() in self._served.keys() - stuck])
                break
            count += 1
            if partition not in stuck and partition in self._served:
                self._decide_alone(record)
                if partition not in self._served or self._served[partition].next <= record.offset:
                    stuck.add(partition)
        return count

    def _decide_together(self, messages: list[KafkaMessage]) -> int:
        count, nexts, batch = len(messages), nexts_of(messages), Batch()
        self._pace.begin()
        try:
            if self._careful or count <= CHUNK or not self._pace.is_cheap:
                batch, count, slow = self._deciding.before(messages)
                self._member.put_back(messages[count:])
                nexts = nexts_of(messages[:count])
                if slow is not None:
                    self._report("a command is too slow", {"at": str(slow.address)})
                    self._served[slow.partition].suspect()
                if count:
                    self._commit(nexts, batch, self._written(batch))
            else:
                self._commit(nexts, batch, self._as_decided(batch, messages))
            self._careful = False
        except (StateTooLarge, OutOfTime) as error:
            self._careful = True
            # Ends the open transaction before the next poll: a revoked partition must not have one.
            self._transactions.refresh()
            self._rewind(nexts, str(error))
        for served in self._served.values():
            served.record_survived(count)
        return count

    def _as_decided(self, batch: Batch, messages: list[KafkaMessage]) -> Iterator[Write]:
        for _ in self._deciding.during(batch, messages):
            yield self._events, batch.events
            batch.events.clear()
        yield from self._written(batch)

    def _written(self, batch: Batch) -> Iterator[Write]:
        return batch.writes(self._events, self._state, self._dead)

    def _begin(self, partitions: Iterable[int]) -> None:
        """Commits that processing starts on these partitions, so the next owner knows what may have killed this one."""
        unmarked = {p: self._served[p] for p in partitions if not self._served[p].begun}
        if unmarked:
            self._member.commit({(self._commands, p): (served.next, STARTED) for p, served in unmarked.items()})
            for served in unmarked.values():
                served.begin(STARTED)

    def _decide_alone(self, record: RawRecord) -> None:
        """Decides one suspected poison pill alone; after three worker deaths it is dead-lettered."""
        served = self._served[record.partition]
        if served.attempts >= DEATHS:
            batch = self._processor.bury(record, f"a worker died {served.attempts} times at this command")
        elif served.refused:
            batch = self._processor.bury(record, f"what it makes cannot be written: {served.refused}", silent=True)
        else:
            # Counted in the offset metadata for the next owner; a failed transaction is not a death.
            trying = attempt(served.attempts + 1)
            self._member.commit({(self._commands, record.partition): (served.next, trying)})
            served.begin(trying)
            try:
                batch = self._deciding.alone(record)
            except (ConfigurationError, InfrastructureError):
                self._withdraw()
                raise
        self._refused = ""
        self._commit({record.partition: record.offset + 1}, batch, self._written(batch))
        if served.next > record.offset:
            served.consume_isolated()
        else:
            served.refused = self._refused

    def _withdraw(self) -> None:
        """Takes back the attempts that it has counted: what ends this worker is no death at a command."""
        tried = {(self._commands, p): left for p, s in self._served.items() if (left := s.withdrawn)}
        self._member.try_commit(tried, wait=True)

    def _commit(self, nexts: Mapping[int, int], batch: Batch, writes: Iterator[Write]) -> None:
        """Runs one transaction: changelog checkpoints (`@`) for all partitions, then `writes`, then the offsets."""
        token = new_token()
        checkpoints = [self._mark(p, to, self._processor.held[p].end, self._served[p]) for p, to in nexts.items()]
        offsets = [TopicPartition(self._commands, p, offset, token) for p, offset in nexts.items()]
        match self._run(chain([(self._state, checkpoints)], writes), offsets):
            case Committed(ends=ends):
                self._apply(batch, nexts, token, ends)
            case Aborted(why=why, code=code):
                self._rewind(nexts, why)
                self._learn(batch, nexts, why, code)
            case Unknown(why=why, code=code) as unknown:
                self._resolve(batch, nexts, token, unknown)
                self._learn(batch, nexts, why, code)

    def _run(self, writes: Iterable[Write], offsets: list[TopicPartition]) -> Result:
        self._transactions.refresh()
        if self._transactions.rotations > self._settled:
            self._await_settled()
        self._last_partitions = {tp.partition for tp in offsets}
        group = self._member.metadata()
        if group is None:
            return Aborted("this member has left its group, and no broker would refuse its offsets")
        began = clock()
        result = self._transactions.run(writes, offsets, group, destination=self._task.writes[0])
        self._reporter.ended(type(result).__name__.lower(), clock() - began, self._transactions.rotations)
        return result

    def _await_settled(self) -> None:
        """Waits until no transaction of this worker is open after a rotation.

        One that a broker forgot stays open; the next owner of the partitions ends it.
        """
        hanging = self._supplier.restore_ports(self._member).hanging(self._app, self._task)
        lost = self._last_partitions - self._served.keys()
        hanging.await_none(self._served, lost, self._transactions.id, SETTLED_SECONDS)
        self._settled = self._transactions.rotations

    def _mark(self, partition: int, commands: int, events: int, of: AssignedPartition | Restored) -> Outgoing:
        known = of.known.moved(commands, events, self._transactions.id, of.state_start, self._supplier.ids)
        return Outgoing(partition, MARK, known.encode(), STATE_HEADERS)

    def _apply(self, batch: Batch, nexts: Mapping[int, int], token: str, ends: Mapping[PartitionId, int]) -> None:
        """Answers the commands of a committed batch, once its transaction has ended on every partition.

        A killed broker may forget to end it. Then the abort of the next transaction would abort this one, too.
        """
        sent = {place: end for place, end in ends.items() if place[0] in batch.sent}
        self._supplier.wait_ended(self._transactions, {place: end for place, end in ends.items() if place not in sent})
        self._pace.committed()
        self._processor.commit(batch, {p: end for (topic, p), end in ends.items() if topic == self._events})
        heavy = batch.weights()
        for partition, offset in nexts.items():
            served = self._served[partition]
            served.spent(heavy[partition], max(1, offset - served.next), batch.answers_dropped.get(partition, 0))
            served.move(offset, token)
        self._reporter.committed(batch, sum(heavy.values()), [held.store for held in self._processor.held.values()])
        self.counts.update(batch.counts)
        if dropped := sum(batch.answers_dropped.values()):
            self.counts["answers_dropped"] += dropped
        self._replies.send(batch.replies, self._events, {p: self._processor.held[p].end for p in nexts})
        self._sent.keep(sent, batch.sent)

    def _rewind(self, nexts: Mapping[int, int], why: str) -> None:
        """Seeks back after a transaction that wrote nothing, so the same commands are fetched again."""
        self.counts["aborted"] += 1
        self._report("transaction aborted", {"why": why, "in a row": self._pace.failures + 1})
        self._member.rewind({(self._commands, p): self._served[p].next for p in nexts if p in self._served})
        self._stop.wait(self._pace.failed())

    def _learn(self, batch: Batch, nexts: Mapping[int, int], why: str, code: int) -> None:
        """Changes how the commands are decided, where the same transaction would abort again."""
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED and self._processor.withhold(batch.sent):
            self._report("answers withheld", {"why": why, "to": sorted(batch.sent)})
        else:
            self._check_rights(why, code, [*self._task.writes, self._state, *batch.sent])
        if code in REFUSED:
            self._refused = why
            for partition in nexts.keys() & self._served.keys():
                self._served[partition].suspect()

    def _check_rights(self, why: str, code: int, topics: Iterable[str]) -> None:
        """Raises if this login may not write the topics: another try would fail in the same way."""
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._withdraw()
            raise self._supplier.denied(f"deciding {self._commands}", why, topics)

    def _resolve(self, batch: Batch, nexts: Mapping[int, int], token: str, unknown: Unknown) -> None:
        """Determines the outcome of a commit from the stable committed offsets and their tokens.

        Other workers may have committed some of the partitions meanwhile; these are restored again.
        """
        self._report("commit outcome unknown", {"why": unknown.why})
        self.counts["unknown"] += 1
        found = {tp.partition: tp for tp in self._supplier.stable(self._commands, list(nexts))}
        left = {p: (tp.offset, tp.metadata) for p, tp in found.items()}
        if all(left[p] == (offset, token) for p, offset in nexts.items()):
            self._apply(batch, nexts, token, unknown.ends)
        elif all(left[p] == (self._served[p].next, self._served[p].metadata) for p in nexts):
            self._rewind(nexts, unknown.why)
        else:
            for partition in nexts:
                self._drop(partition)
                self._member.forsake((self._commands, partition))

    def _leave(self, places: list[PartitionId], ours: bool) -> None:
        partitions = [partition for _, partition in places]
        clean = {(self._commands, p): (s.next, CLEAN) for p in partitions if (s := self._served.get(p)) and s.begun}
        if ours and clean and self._orderly:
            try:
                self._member.commit(clean)
            except KafkaException as error:
                self._report("not left clean", {"why": str(error)})
        for partition in partitions:
            self._drop(partition)
        self._restores.drop(partitions)
        if partitions:
            self._report("left", {"topic": self._commands, "partitions": sorted(partitions)})

    def _drop(self, partition: int) -> None:
        self._served.pop(partition, None)
        self._processor.drop(partition)

    def close(self) -> None:
        """Leaves the group with every partition clean, and closes all clients."""
        self._replies.flush(2.0)
        self._member.close()
        self._restores.close()
        self._transactions.close()
        self._supplier.close()
