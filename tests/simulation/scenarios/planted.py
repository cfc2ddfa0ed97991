"""Bugs that are planted: each takes one mechanism out of the shipped code, and the simulator must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from confluent_kafka import TopicPartition

from leftfold.client.lookup import Lookup
from leftfold.engine.rebuild.rebuilder import Rebuild, StartedRebuild
from leftfold.engine.rebuild.swap import CatchUp
from leftfold.engine.views import cleanup as rebuild_removal
from leftfold.engine.views import leases as rebuild_attempt
from leftfold.engine.views.folded_rows import FoldedRow
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.engine.views.projector import Projector
from leftfold.kafka import bulk_log as bulk
from leftfold.kafka import log_reader as reader
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.errors import QuietLog
from leftfold.kafka.worker import aborted_records as lost
from leftfold.kafka.worker.hanging_transactions import Hanging
from leftfold.kafka.worker.sent_records import SentRecords, SentWatch
from leftfold.kafka.worker.state_restore import Restoration
from leftfold.kafka.worker.transactions import Aborted, Committed, Transactions, _Listening
from leftfold.kafka.worker.worker import Worker
from leftfold.redis import RedisViewStore
from leftfold.redis.connection.protocol import EXEC, MULTI
from leftfold.redis.flusher import Flusher
from tests.simulation.scenarios.bug import Bug, Patch, decide_with
from tests.simulation.scenarios.mishaps import COMMITS, SLOW
from tests.simulation.scenarios.planted_consumers import CONSUMERS
from tests.simulation.scenarios.purse import DECIDED, FORGOTTEN, RESTARTS, WOKEN
from tests.simulation.scenarios.reverted import REVERTED
from tests.simulation.scenarios.spending import DEPLOY, SPENDING
from tests.simulation.scenarios.trading import LIVING, SENT

__all__ = ["PLANTED", "planted"]


def _restore_order() -> Sequence[Patch]:
    """The ends of states and events are taken before the stable committed offset is known."""
    committed, ends = Restoration._committed, Restoration._ends

    def early(self: Any) -> bool:
        if not hasattr(self, "_early"):
            self._early = {(t, p): ends(self, t, p) for p in self.found for t in (self._state, self._log_of)}
        return committed(self)

    def ends_then(self: Any, topic: str, partition: int) -> tuple[int, int]:
        return getattr(self, "_early", {}).get((topic, partition)) or ends(self, topic, partition)

    return [(Restoration, "_committed", early), (Restoration, "_ends", ends_then)]


def _high_watermark() -> Sequence[Patch]:
    """A restore goes as far as what is committed by now, not as far as what is written."""

    def ends(self: Any, topic: str, partition: int) -> tuple[int, int]:
        low, high = self._ports.stable.get_watermark_offsets(TopicPartition(topic, partition), timeout=5.0)
        return low, high

    return [(Restoration, "_ends", ends)]


def _offsets_outside() -> Sequence[Patch]:
    """Offsets are committed behind the transaction, not in it."""
    run = Transactions.run

    def without(self: Any, writes: Any, offsets: Any, group: Any, *, destination: str = "") -> Any:
        return run(self, writes, [], group, destination=destination)

    def then(self: Any, writes: Any, offsets: list[TopicPartition]) -> Any:
        result = run_of_worker(self, writes, offsets)
        if isinstance(result, Committed):
            self._member.commit({(tp.topic, tp.partition): (tp.offset, tp.metadata) for tp in offsets})
        return result

    run_of_worker = Worker._run
    return [(Transactions, "run", without), (Worker, "_run", then)]


def _rewind() -> Sequence[Patch]:
    """Behind an abort the consumer reads on."""
    return [(GroupMember, "rewind", lambda self, offsets: None)]


def _fresh_metadata() -> Sequence[Patch]:
    """The metadata of the group are those of the first transaction."""
    metadata = GroupMember.metadata

    def cached(self: Any) -> Any:
        self._cached = getattr(self, "_cached", None) or metadata(self)
        return self._cached

    return [(GroupMember, "metadata", cached)]


def _read_committed() -> Sequence[Patch]:
    """A restore reads what was aborted, too."""
    return [(reader, "reader_config", _uncommitted(reader.reader_config))]


def _uncommitted(config: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    return lambda settings: {**config(settings), "isolation.level": "read_uncommitted"}


def _rotation() -> Sequence[Patch]:
    """A producer that may have a request under way continues."""

    def refresh(self: Any) -> None:
        self._producer.poll(0)
        self.dirty = ""

    return [(Transactions, "refresh", refresh)]


def _deaf() -> Sequence[Patch]:
    """No code hears what clients log: a producer continues though a request failed or was not answered."""
    return [(log, "handle", lambda self, record: None) for log in (_Listening, QuietLog)]


def _answered() -> Sequence[Patch]:
    """What was answered is not remembered."""

    def forget(stream: Any, received: Any) -> Any:
        stream.answered.clear()
        return received

    return decide_with(forget)


def _mark_first() -> Sequence[Patch]:
    """`@` is the last record of a transaction."""
    run = Worker._run

    def later(self: Any, writes: Any, offsets: Any) -> Any:
        first, *rest = writes
        return run(self, [*rest, first], offsets)

    return [(Worker, "_run", later)]


def _unknown_is_aborted() -> Sequence[Patch]:
    """A commit of unknown outcome passes for an abort."""
    return [(Worker, "_resolve", lambda self, batch, nexts, token, unknown: self._rewind(nexts, unknown.why))]


def _unknown_is_committed() -> Sequence[Patch]:
    """A commit of unknown outcome passes for a commit."""
    return [
        (Worker, "_resolve", lambda self, batch, nexts, token, unknown: self._apply(batch, nexts, token, unknown.ends))
    ]


def _hanging() -> Sequence[Patch]:
    """Transactions that brokers forgot are left open."""
    return [(Hanging, "end", lambda self, mine, **options: []), (Hanging, "await_none", lambda self, *more: None)]


def _held_readers() -> Sequence[Patch]:
    """A worker that takes over a partition of whole states does not look whether readers are held up on its events."""
    return [(Restoration, "_holds_readers", lambda self: False)]


def _generation() -> Sequence[Patch]:
    """A worker that is no member sends its offsets all the same."""
    return [(GroupMember, "metadata", lambda self: self.consumer.consumer_group_metadata())]


def _token_alone() -> Sequence[Patch]:
    """What became of a commit is decided by tokens alone, which are not unique: without the offsets beside them."""

    def resolve(self: Any, batch: Any, nexts: Any, token: str, unknown: Any) -> None:
        left = {tp.partition: tp.metadata for tp in self._supplier.stable(self._commands, list(nexts))}
        if all(left[p] == token for p in nexts):
            self._apply(batch, nexts, token, unknown.ends)
        elif all(left[p] == self._served[p].metadata for p in nexts):
            self._rewind(nexts, unknown.why)
        else:
            for partition in nexts:
                self._drop(partition)
                self._member.forsake((self._commands, partition))

    return [(Worker, "_resolve", resolve)]


def _unended() -> Sequence[Patch]:
    """Clients are answered, and the next transaction begins, before the last one has ended on every partition."""
    return [(Transactions, "wait_ended", lambda self, stable, ends: None)]


def _unreleased() -> Sequence[Patch]:
    """A worker does not wait until its transaction has ended where it has sent commands."""
    return [(SentRecords, "keep", lambda self, ends, sent: None)]


def _unwatched() -> Sequence[Patch]:
    """Nothing ends a transaction of a dead worker that hangs only where it has sent commands."""
    return [(SentWatch, "step", lambda self: None)]


def _unnoted() -> Sequence[Patch]:
    """A worker that ends a transaction that a broker forgot does not note first which records are committed."""
    return [(Hanging, "_note", lambda self, *more: None)]


def _any_note() -> Sequence[Patch]:
    """A note counts beside other writers, and although its transaction was ended: late writes of others are kept."""
    return [(lost, "is_over", lambda record, end: False), (Hanging, "_is_alone", lambda self, *more: True)]


def _failed_is_done() -> Sequence[Patch]:
    """A transaction that failed before its commit passes for done."""
    run = Transactions.run

    def done(self: Any, *more: Any, **options: Any) -> Any:
        result = run(self, *more, **options)
        return Committed({}) if isinstance(result, Aborted) else result

    return [(Transactions, "run", done)]


def _unstable_offsets() -> Sequence[Patch]:
    """A worker that takes a partition over does not wait until the offsets of an open transaction are decided."""
    init = GroupMember.__init__

    def impatient(self: Any, config: Any, *more: Any) -> None:
        init(self, {**config, "isolation.level": "read_uncommitted"}, *more)

    return [(GroupMember, "__init__", impatient)]


def _not_landed() -> Sequence[Patch]:
    """A flush that did not come off passes for done."""
    landed = ProjectionWriter.landed

    def done(self: Any) -> bool:
        flying = self._flying
        if not landed(self) and flying is not None:
            self._flying, self.checkpoints = None, flying[1]
        return True

    return [(ProjectionWriter, "landed", done)]


def _went_back() -> Sequence[Patch]:
    """A projector with nothing to write does not look whether its checkpoints are still there."""
    return [(ProjectionWriter, "is_confirmed", lambda self: True)]


def _flush_token() -> Sequence[Patch]:
    """A flush is sent even if another writer has written its buckets since."""
    return [(Flusher, "has_expected_tokens", lambda self, flushes, tokens: True)]


def _marks_apart() -> Sequence[Patch]:
    """Rows and checkpoints are written in two transactions."""

    def apart(self: Any, commands: list[bytes]) -> list[bytes]:
        first, rest = commands[: len(commands) // 2], commands[len(commands) // 2 :]
        return [MULTI, *first, EXEC, MULTI, *rest, EXEC]

    return [(Flusher, "transaction", apart)]


def _checksum() -> Sequence[Patch]:
    """A row that changes leaves its earlier digest in the checksum of its bucket."""
    change = FoldedRow.change

    def heavier(self: Any, *more: Any) -> Any:
        self.digest = 0
        return change(self, *more)

    return [(FoldedRow, "change", heavier)]


def _index_entries() -> Sequence[Patch]:
    """A row that changes leaves its earlier entry in each index."""
    change = FoldedRow.change
    return [(FoldedRow, "change", lambda self, *more: change(self, *more)._replace(before=None))]


def _read_your_writes() -> Sequence[Patch]:
    """Readers wait for no position."""
    row = Lookup.row
    return [(Lookup, "row", lambda self, key, after, timeout: row(self, key, None, timeout))]


def _late_seal() -> Sequence[Patch]:
    """A rebuild notes where the log ends when it is done, not where it stopped reading."""
    seal = Rebuild.seal

    def late(self: Any, begun: StartedRebuild, results: Any) -> None:
        ends = self._stable_ends(begun.plan)
        seal(self, replace(begun, plan=replace(begun.plan, ends=ends)), results)

    return [(Rebuild, "seal", late)]


def _catch_up() -> Sequence[Patch]:
    """A rebuild goes live before it has caught up with the rows that readers see."""
    return [(CatchUp, "wait", lambda self, *more, **options: None)]


def _level() -> Sequence[Patch]:
    """A rebuild goes live whatever readers have seen since it looked."""
    change = RedisViewStore.change_registry
    return [
        (RedisViewStore, "change_registry", lambda self, view, before, after, *more: change(self, view, before, after))
    ]


def _attempt() -> Sequence[Patch]:
    """A rebuild that was taken for dead continues to fill what another one fills by now."""
    there = lambda registry, generation: generation.id in registry.generations  # noqa: E731
    return [(module, "is_of_attempt", there) for module in (rebuild_attempt, rebuild_removal)]


def _bulk_committed() -> Sequence[Patch]:
    """A rebuild reads what was aborted, too."""
    return [(bulk, "reader_config", _uncommitted(reader.reader_config))]


def _other_code() -> Sequence[Patch]:
    """A projector folds whatever has its view's schema, also what was made by other code."""
    init = Projector.__init__
    return [(Projector, "__init__", lambda self, *more, **options: init(self, *more, **{**options, "folds": {}}))]


PLANTED = {
    "restore order": Bug(_restore_order),
    "high watermark": Bug(_high_watermark, RESTARTS),
    "offsets outside": Bug(_offsets_outside),
    "rewind": Bug(_rewind),
    "fresh metadata": Bug(_fresh_metadata),
    "read committed": Bug(_read_committed),
    "rotation": Bug(_rotation, COMMITS),
    "deaf": Bug(_deaf),
    "answered": Bug(_answered),
    "mark first": Bug(_mark_first),
    "unknown is aborted": Bug(_unknown_is_aborted, COMMITS),
    "unknown is committed": Bug(_unknown_is_committed),
    "interruption": replace(CONSUMERS["interrupted router"], scenario=SLOW),
    "hanging": Bug(_hanging, DECIDED),
    "held readers": Bug(_held_readers, FORGOTTEN),
    "generation": Bug(_generation, SLOW),
    "token alone": Bug(_token_alone),
    "unended": Bug(_unended, FORGOTTEN),
    "unnoted": Bug(_unnoted, FORGOTTEN),
    "unreleased": Bug(_unreleased, LIVING),
    "unwatched": Bug(_unwatched, SENT),
    "any note": Bug(_any_note, WOKEN),
    "failed is done": Bug(_failed_is_done),
    "unstable offsets": Bug(_unstable_offsets),
    "flush token": Bug(_flush_token, SPENDING),
    "marks apart": Bug(_marks_apart, SPENDING),
    "checksum": Bug(_checksum, SPENDING),
    "index entries": Bug(_index_entries, SPENDING),
    "read your writes": Bug(_read_your_writes, SPENDING),
    "late seal": Bug(_late_seal, SPENDING),
    "catch up": Bug(_catch_up, SPENDING),
    "level": Bug(_level, SPENDING),
    "attempt": Bug(_attempt, SPENDING),
    "bulk committed": Bug(_bulk_committed, SPENDING),
    "not landed": Bug(_not_landed, SPENDING),
    "went back": Bug(_went_back, SPENDING),
    "other code": Bug(_other_code, DEPLOY),
    **REVERTED,
    **CONSUMERS,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The bug is there within the block."""
    patches = PLANTED[name].patches()
    before = [(where, attribute, getattr(where, attribute)) for where, attribute, _ in patches]
    for where, attribute, value in patches:
        setattr(where, attribute, value)
    try:
        yield
    finally:
        for where, attribute, value in before:
            setattr(where, attribute, value)
