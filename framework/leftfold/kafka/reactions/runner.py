"""Runs one process of a reaction: reads committed events, handles them, and commits their offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from functools import partial

from confluent_kafka import KafkaException

from leftfold.engine.reactions.pending import PendingDelivery
from leftfold.engine.reactions.reaction_processor import Handoff, ReactionProcessor
from leftfold.errors import ContractError, InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.errors import translated
from leftfold.kafka.reactions.parked import Parking
from leftfold.kafka.reactions.start_offsets import StartOffsets, has_members
from leftfold.kafka.records import raw
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.ports.bulk import OpenArchive
from leftfold.ports.instruments import CONSUMED, member
from leftfold.ports.outgoing import reason_of
from leftfold.ports.protocols import PartitionId, Report

__all__ = ["ReactionRunner"]

_LIMIT, _COMMIT_SECONDS, _IDLE, _BUSY = 500, 0.5, 0.2, 0.02
_LEAVE_SECONDS, _REFUSED_SECONDS = 10.0, 5.0


class ReactionRunner:
    """Runs a reaction until `stop` is set; several processes share the partitions.

    An offset is committed when all events before it are done or parked. A kill at any point loses no event, and events
    done after the committed offset are done again with the same keys.

    Args:
        open_archive: as of `StartOffsets`.
    """

    def __init__(
        self,
        app: App,
        name: str,
        settings: KafkaSettings,
        *,
        stop: threading.Event,
        report: Report,
        open_archive: OpenArchive | None = None,
    ) -> None:
        self._reaction, self._stop, self._report = app.reaction(name), stop, report
        with ClusterAdmin(settings) as cluster:
            parking = Parking(name, settings, cluster.partitions(names.dead(name)))
        self._processor = ReactionProcessor(
            self._reaction, parking.park, note=self._noted, report_failure=self._report_failure
        )
        self._start_offsets = StartOffsets(app, self._reaction, settings, open_archive)
        self._starts: dict[PartitionId, Handoff] = {}
        self._paused: set[PartitionId] = set()
        self._refused: dict[PartitionId, ContractError] = {}
        """Partitions whose next event this code cannot read, and why."""
        self._ends_at = 0.0
        self._due, self._is_settled = 0.0, False
        self._member = GroupMember(
            settings.librdkafka(),
            names.reacting(app.name, name),
            [names.events(category) for category in self._reaction.categories],
            self._leave,
            partial(_gap, name),
            client="reaction",
            is_reporting=True,
        )

    @property
    def trouble(self) -> str:
        """Why nothing can be read right now, or ''."""
        return self._member.trouble

    @property
    def served(self) -> frozenset[PartitionId]:
        """The partitions that this process reads."""
        return self._member.served

    def run(self, report_trouble: Callable[[str], None] = lambda trouble: None) -> None:
        """Runs until `stop` is set, then finishes events in progress, for at most ten seconds.

        The callback is called in each turn with `trouble`, '' = none.

        Raises:
            ContractError: an event has a newer version than this code knows. InfrastructureError: no broker answers,
                or the offset of the reaction is lost. Fenced: this process must end.
        """
        try:
            busy = False
            while not self._stop.is_set():
                self._take(0.0 if busy else _IDLE)
                busy = self._processor.step(_BUSY)
                self._commit()
                self._check_refused()
                report_trouble(self.trouble)
            self._processor.settle(None, _LEAVE_SECONDS)
            self._is_settled = True
        except KafkaException as error:
            raise translated(error, doing=f"reading events for reaction {self._reaction.name}") from error
        finally:
            self._member.close()

    def _take(self, wait: float) -> None:
        messages = self._member.fetch(_LIMIT, wait)
        self._serve()
        if messages:
            acting = {"messaging.system": "kafka", "messaging.operation.name": "act"}
            CONSUMED.record(len(messages), {**member("reaction", self._reaction.name), **acting})
        frontier = self._processor.frontier
        for record in map(raw, messages):
            if record.place in self._refused or record.offset < frontier.reached(record.place):
                continue
            try:
                self._processor.take(record)
            except ContractError as error:
                self._refused[record.place] = error
        for place, offset in self._member.ends.items():
            if place not in self._refused:
                frontier.reach(place, offset)
        full = {place for place in self.served if place in self._refused or frontier.is_full(place)}
        if full != self._paused & self.served:
            self._member.pause(full - self._paused)
            self._member.resume((self._paused - full) & self.served)
        self._paused = full

    def _check_refused(self) -> None:
        """Ends this process some seconds after it met an event that it cannot read: until then it acts on the others.

        Raises:
            ContractError: of that event.
        """
        if not self._refused:
            self._ends_at = 0.0
            return
        now = time.monotonic()
        self._ends_at = self._ends_at or now + _REFUSED_SECONDS
        if now >= self._ends_at:
            self._member.commit_moved(self._processor.left(), wait=True)
            raise next(iter(self._refused.values()))

    def _serve(self) -> None:
        """Starts reading new partitions where their last owner stopped; a rebalance meanwhile delays it."""
        if unknown := self._member.new - self._starts.keys():
            try:
                found = self._start_offsets.find(self._member.consumer, unknown)
            except InfrastructureError as error:
                if has_members(error):
                    return
                raise
            self._starts |= {place: found[place] for place in unknown}
        served = [place for place in sorted(self._member.new) if self._member.serve(place, self._starts[place].offset)]
        for place in served:
            left = self._member.committed[place] = self._starts.pop(place)
            self._processor.hold(place, left)
        if served:
            self._report("reacting", {"reaction": self._reaction.name, "partitions": len(self.served)})

    def _commit(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _COMMIT_SECONDS
        self._member.commit_moved(self._processor.left(), wait=False)

    def _noted(self) -> bool:
        """Commits the notes about starting attempts for the next owner; False if they could not be committed."""
        committed, left = self._member.committed, self._processor.left()
        if all(place in committed and note == committed[place][1] for place, (_, note) in left.items()):
            return True
        return self._member.commit_moved(left, wait=True)

    def _leave(self, places: Collection[PartitionId], ours: bool) -> None:
        if ours:
            if not self._is_settled:
                self._processor.settle(places, min(_LEAVE_SECONDS, self._reaction.timeout))
            self._member.try_commit(self._processor.handoff_metadata(places), wait=True)
        self._processor.drop(places)
        self._paused.difference_update(places)
        for place in places:
            self._starts.pop(place, None)
            self._refused.pop(place, None)

    def _report_failure(self, pending: PendingDelivery, error: BaseException, is_parked: bool) -> None:
        details = {"reaction": self._reaction.name, "at": str(pending.record.address), "attempt": pending.tries}
        self._report("parked" if is_parked else "trying again", {**details, "why": reason_of(error)[:500]})


def _gap(reaction: str, topic: str, partition: int, offset: int) -> InfrastructureError:
    return InfrastructureError(
        f"{topic}[{partition}] does not hold offset {offset}, which comes next: it was trimmed or recreated before it "
        f"was done. To continue at the first event there: leftfold reactions begin {reaction} --since start"
    )
