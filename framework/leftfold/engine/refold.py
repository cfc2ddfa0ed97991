"""Brings restored streams up to their events: what a state topic lacks is folded from the log."""

from __future__ import annotations

import json
from typing import Any

from leftfold import names
from leftfold.codec import UNREADABLE, MessageCodec, header
from leftfold.decider import Decider
from leftfold.digits import number_in
from leftfold.engine.dead_letter import PASSED, offset_in
from leftfold.engine.statemark import MARK
from leftfold.engine.stream import Stream, StreamCodec, answer
from leftfold.errors import ContractError, InfrastructureError
from leftfold.ports import RawRecord, StateStore

__all__ = ["Refold"]


class Refold:
    """Folds one partition's events into its state store; streams that already hold an event skip it.

    Events that cannot be folded are noted in `{category}.dead` by the workers that stand still at them; a mark behind
    such a letter says that somebody had them pass it over. `changed` are the streams that the state topic does not have
    yet. What was answered is rebuilt as far as events tell: command ids that wrote something, without their bodies'
    digests.
    """

    def __init__(self, decider: Decider[Any, Any, Any], store: StateStore) -> None:
        self._decider, self.store = decider, store
        self._events: MessageCodec[Any] = MessageCodec(decider.events)
        self._streams = StreamCodec(decider.state, decider.initial_state)
        self.changed: dict[str, Stream[Any]] = {}
        self.refused = 0
        self._topic = names.events(decider.name)
        self.noted: dict[int, int] = {}
        self.passed: set[int] = set()

    def pass_over(self, letter: RawRecord) -> None:
        """An event that was noted is passed over once a mark says so; commands are of no concern here."""
        if (offset := offset_in(letter, self._topic)) is not None:
            if header(letter.headers, "dead_how") == PASSED.encode():
                self.passed.add(offset)
            else:
                self.noted[offset] = letter.offset

    def stream(self, key: str) -> Stream[Any]:
        """The stream as far as it is folded."""
        if key in self.changed:
            return self.changed[key]
        record = self.store.get(key)
        if record is None:
            return self._streams.new()
        return self._streams.decode(record, 0.0)

    def _version(self, key: str) -> int:
        if key in self.changed:
            return self.changed[key].version
        record = self.store.get(key)
        return 0 if record is None else self._streams.version(record)

    def add(self, record: RawRecord) -> None:
        """Folds one event; a record with the key `@` is none (it ends a transaction that a broker forgot).

        Raises:
            InfrastructureError: events before it are missing, so no complete state can be made.
            ContractError: the event cannot be read or folded; the partition must not be served.
        """
        if record.key == MARK:
            return
        where = f"{record.topic}[{record.partition}]@{record.offset}"
        found = dict(record.headers)
        try:
            key = (record.key or b"").decode()
            version = _number(found["ce_sequence"])
            k, n = map(_number, found["ce_decision"].split(b"/"))
            command_id = found["ce_causationid"].decode()
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            why = header(record.headers, UNREADABLE).decode(errors="replace") or f"broken key or headers ({error!r})"
            raise ContractError(f"{where}: {why}; the partition is not served") from error
        if version <= self._version(key):
            return
        stream = self.stream(key)
        if version != stream.version + 1:
            raise InfrastructureError(
                f"{where}: stream {key!r} goes on at version {version}, but only {stream.version} are known; events "
                f"before it are missing, so the partition is not served"
            )
        try:
            event = self._events.decode(found.get("ce_type") or b"", record.value)
        except ContractError as error:
            raise ContractError(f"{where}: {error}; the partition is not served") from error
        try:
            stream.state = self._decider.evolve(stream.state, event)
        except Exception as error:
            raise ContractError(
                f"{where}: {self._decider.name}.evolve failed on {_brief(event)}: {_brief(error)}; the partition "
                "is not served"
            ) from error
        stream.version = version
        if command_id not in stream.answered:
            stream.remember(command_id, answer(command_id, "", version - k + 1, n, None, 0.0))
        self.changed[key] = stream

    def adopt(self, key: str, record: bytes) -> None:
        """Takes answers and origins from another decider version's record of the stream."""
        stream = self.stream(key)
        stream.weight = -1
        fields = json.loads(record)
        for id_, digest, first, outcome in fields["answered"]:
            error = outcome if isinstance(outcome, dict) else None
            events = 0 if isinstance(outcome, dict) else outcome
            stream.answered[id_] = answer(id_, digest, first, events, error, 0.0)
        for source, (offset, index) in fields["origins"].items():
            stream.origins[source] = max((offset, index), stream.origins.get(source, (-1, -1)))
        self.changed[key] = stream

    def take(self, most: int) -> list[tuple[str, bytes]]:
        """Up to `most` changed streams as records for the state topic; they count as unchanged from then on."""
        keys = list(self.changed)[:most]
        records = [(key, self._streams.encode(self.changed.pop(key))) for key in keys]
        self.store.put(records)
        return records


def _number(text: bytes) -> int:
    number = number_in(text)
    if number is None:
        raise ValueError(f"{text[:80]!r} is no number")
    return number


def _brief(value: object) -> str:
    return repr(value)[:500]
