"""Brings the instances of a process up to their inputs: what a state topic lacks is folded from the log of inputs."""

from __future__ import annotations

from typing import Any

from leftfold.codec import header
from leftfold.engine.inputs import BARRIER, read_input
from leftfold.engine.instance import Instance, InstanceCodec
from leftfold.engine.reacting import Passed, Reactor
from leftfold.errors import ContractError
from leftfold.ports import RawRecord, StateStore
from leftfold.process import Process

__all__ = ["ProcessRefold"]


class ProcessRefold:
    """Takes one partition's inputs again, as they were taken then; what was sent for them has been sent.

    `changed` are the instances that the state topic does not have yet.
    """

    def __init__(self, process: Process[Any, Any, Any], store: StateStore) -> None:
        self.store = store
        self._reactor = Reactor(process)
        self._codec: InstanceCodec[Any] = InstanceCodec(process.state, process.initial_state)
        self.changed: dict[str, Instance[Any]] = {}

    def add(self, record: RawRecord) -> None:
        """Takes one input; one that could not be read then is passed over now."""
        if header(record.headers, "ce_type") == BARRIER:
            return
        try:
            given = read_input(record)
        except ContractError:
            return
        instance = self._instance(given.key)
        if not isinstance(self._reactor.take(instance, given), Passed):
            self.changed[given.key] = instance

    def adopt(self, key: str, record: bytes) -> None:
        """Nothing: all that an instance knows comes from its inputs."""

    def take(self, most: int) -> list[tuple[str, bytes]]:
        """Up to `most` changed instances as records for the state topic; they count as unchanged from then on."""
        keys = list(self.changed)[:most]
        records = [(key, self._codec.encode(self.changed.pop(key))) for key in keys]
        self.store.put(records)
        return records

    def _instance(self, key: str) -> Instance[Any]:
        if key in self.changed:
            return self.changed[key]
        record = self.store.get(key)
        return self._codec.new() if record is None else self._codec.decode(record, 0.0)
