"""`memory(app, now=...)`: an App at work in this process, with the same client and views as in production."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from leftfold import names
from leftfold.app import App
from leftfold.codec import read_recorded, utc_text
from leftfold.engine.batch import Batch
from leftfold.engine.lane import Lane
from leftfold.engine.received import command_headers, command_id
from leftfold.engine.reply import to_error
from leftfold.engine.tail import Tail
from leftfold.envelope import Receipt, Recorded
from leftfold.errors import ConfigurationError, LeftfoldError
from leftfold.memory.client import MemoryClient
from leftfold.memory.log import MemoryLog
from leftfold.memory.queries import FoldedViews
from leftfold.memory.states import MemoryStates
from leftfold.memory.views import MemoryViewStore
from leftfold.messages import Command
from leftfold.partitioner import partition_of
from leftfold.position import Position

__all__ = ["World", "memory"]


class World:
    """An App in memory: `client` and `views` as in production, `now` and `advance` for its clock."""

    def __init__(self, app: App, now: datetime) -> None:
        self.app, self.now = app, now
        self.log, self.store = MemoryLog(), MemoryViewStore()
        self._lanes = {decider.name: self._lane(decider) for decider in app.deciders}
        for view in app.views:
            for category in view.categories:
                self.log.create(names.events(category), app.partitions)
        self._tail = Tail(app.views, self.log.reader, self.store, look=0.0)
        self.settle()
        self.client = MemoryClient(self.decide, self.settle)
        self.views = FoldedViews(self.store)

    def advance(self, by: timedelta, /) -> None:
        """Moves the clock on."""
        self.now += by

    def events(self, category: str) -> list[Recorded[Any]]:
        """Everything written in a category, partition by partition.

        Raises:
            ConfigurationError: the App has no decider of that category.
        """
        codec = self._lanes[self.app.decider(category).name].events
        found = (read_recorded(codec, r) for records in self.log.of(names.events(category)) for r in records)
        return [recorded for recorded in found if recorded is not None]

    def decide(
        self, command: Command, id_: str | None, expected_version: int | None, at: datetime | None
    ) -> Receipt | LeftfoldError:
        """Runs one command through the lane and the log; `settle` brings the views up to it."""
        spec = type(command).__leftfold__
        lane = self._lanes.get(spec.category)
        if lane is None or type(command) not in lane.commands.types:
            raise ConfigurationError(
                f"app {self.app.name} decides no {type(command).__name__}; add its decider to the App"
            )
        key = getattr(command, spec.key).encode()
        headers = command_headers(
            command,
            id=id_ or command_id(),
            source=self.app.name,
            at=utc_text(at or self.now).encode(),
            type_=lane.commands.types[type(command)],
            expected_version=expected_version,
            reply_to=b"memory",
        )
        partition = partition_of(key, self.app.partitions)
        record = self.log.append(names.commands(spec.category), partition, key, lane.commands.encode(command), headers)
        batch = lane.process([record])
        self._commit(lane, batch)
        return self._answer(lane, batch, command, partition)

    def _lane(self, decider: Any) -> Lane:
        lane = Lane(
            self.app.name, decider, partition_of=lambda k: partition_of(k, self.app.partitions), clock=time.monotonic
        )
        for topic in (names.commands(decider.name), names.events(decider.name), names.dead(decider.name)):
            self.log.create(topic, self.app.partitions)
        for partition in range(self.app.partitions):
            lane.hold(partition, MemoryStates(), end=0)
        return lane

    def _commit(self, lane: Lane, batch: Batch) -> None:
        ends: dict[int, int] = {}
        for out in batch.events:
            record = self.log.append(names.events(lane.decider.name), out.partition, out.key, out.value, out.headers)
            ends[out.partition] = record.offset + 1
        for out in batch.dead:
            self.log.append(names.dead(lane.decider.name), out.partition, out.key, out.value, out.headers)
        lane.commit(batch, ends)

    def _answer(self, lane: Lane, batch: Batch, command: Command, partition: int) -> Receipt | LeftfoldError:
        (reply,) = batch.replies
        if reply.error is not None:
            return to_error(reply.error, type(command))
        end = lane.held[partition].end
        return Receipt(Position.at(names.events(lane.decider.name), partition, end), reply.version, reply.events)

    def settle(self) -> None:
        """Folds what was written into the views."""
        if self._tail.views:
            while self._tail.step(0.0) or not self._tail.caught_up():
                pass


@contextmanager
def memory(app: App, /, *, now: datetime) -> Iterator[World]:
    """An App without servers, its clock at `now` (aware)."""
    utc_text(now)
    yield World(app, now)
