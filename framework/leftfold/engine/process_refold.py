"""Brings the instances of a process up to their inputs: what a state topic lacks is folded from the log of inputs."""

from __future__ import annotations

from typing import Any

from leftfold.codec import header
from leftfold.engine.dead_letter import offset_in
from leftfold.engine.inputs import BARRIER, read_input
from leftfold.engine.instance import Instance, InstanceCodec
from leftfold.engine.reacting import Failed, Passed, Reactor
from leftfold.errors import ContractError
from leftfold.ports import RawRecord, StateStore
from leftfold.process import Process

__all__ = ["ProcessRefold"]

_OPEN = 2000


class ProcessRefold:
    """Takes one partition's inputs again, as they were taken then; what was sent for them has been sent.

    What was dead-lettered then is passed over, whatever this code would make of it: nothing was sent for it. `changed`
    are the instances that the state topic does not have yet; of a great many only some are held decoded.
    """

    def __init__(self, process: Process[Any, Any, Any], store: StateStore) -> None:
        self.store, self.refused = store, 0
        self.noted: dict[int, int] = {}
        self.passed: set[int] = set()
        self._reactor, self._topic = Reactor(process), f"{process.name}.commands"
        self._codec: InstanceCodec[Any] = InstanceCodec(process.state, process.initial_state)
        self.changed: dict[str, None] = {}
        self._open: dict[str, Instance[Any]] = {}
        self._dead: set[int] = set()

    def pass_over(self, letter: RawRecord) -> None:
        """An input that was dead-lettered is not taken now either."""
        if (offset := offset_in(letter, self._topic)) is not None:
            self._dead.add(offset)

    def add(self, record: RawRecord) -> None:
        """Takes one input; one that could not be read then is passed over now."""
        if header(record.headers, "ce_type") == BARRIER:
            return
        try:
            given = read_input(record)
        except ContractError:
            return
        instance = self._instance(given.key)
        if record.offset in self._dead:
            self._reactor.refuse(instance, given)
        else:
            outcome = self._reactor.take(instance, given)
            if isinstance(outcome, Passed) and given.key not in self.changed:
                return
            self.refused += isinstance(outcome, Failed)
        self.changed[given.key] = None
        self._open[given.key] = instance
        if len(self._open) > _OPEN:
            self._close(next(iter(self._open)))

    def adopt(self, key: str, record: bytes) -> None:
        """Nothing: all that an instance knows comes from its inputs."""

    def take(self, most: int) -> list[tuple[str, bytes]]:
        """Up to `most` changed instances as records for the state topic; they count as unchanged from then on."""
        keys = list(self.changed)[:most]
        records: list[tuple[str, bytes]] = []
        for key in keys:
            self._close(key)
            del self.changed[key]
            records.append((key, self.store.get(key) or b""))
        return records

    def _close(self, key: str) -> None:
        if (instance := self._open.pop(key, None)) is not None:
            self.store.put([(key, self._codec.encode(instance))])

    def _instance(self, key: str) -> Instance[Any]:
        if (instance := self._open.pop(key, None)) is not None:
            return instance
        record = self.store.get(key)
        return self._codec.new() if record is None else self._codec.decode(record, 0.0)
