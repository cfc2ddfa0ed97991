"""An instance of a process: its state, timers and unanswered commands, and its record."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from leftfold.engine.processing.stream_state import FirstState, is_state
from leftfold.errors import ContractError
from leftfold.model.state_codec import Storage, time_in

__all__ = ["Due", "Instance", "InstanceCodec", "SentCommand"]


N = TypeVar("N")
S = TypeVar("S")
_HEAD = b'{"version":'
_TIMERS, _NO_TIMERS = b'"timers":', b'"timers":{}'
_FIELDS = _TIMERS, b'"waiting":', b'"finished":'


class SentCommand(NamedTuple):
    """A command that was sent and not answered yet: wire type and value."""

    type: str
    value: str


class Due(NamedTuple):
    """A timer: when it is due (RFC 3339, UTC), the command it sends, and its correlation id.

    `by` is the id of the input that set it: it distinguishes one setting from the next.
    """

    at: str
    type: str
    value: str
    correlation: str
    by: str


@dataclass(slots=True)
class Instance(Generic[S]):
    """One business key of a process: `version` counts the inputs it took, `waiting` holds commands by their ids."""

    version: int
    state: S
    origins: dict[str, tuple[int, int]]
    timers: dict[str, Due]
    waiting: dict[str, SentCommand]
    finished: bool = False

    def copy(self) -> Instance[S]:
        """A copy that may change without changing this one."""
        return replace(self, origins=dict(self.origins), timers=dict(self.timers), waiting=dict(self.waiting))

    def shed(self, excess: int) -> int:
        """Sheds nothing: an instance needs all that it remembers."""
        return 0


class InstanceCodec(Generic[S]):
    """Reads and writes the state records of a process."""

    def __init__(self, storage: Storage[S], initial: S) -> None:
        self._storage, self._initial = storage, FirstState(storage, initial)

    def new(self) -> Instance[S]:
        """A new instance without any input."""
        return Instance(0, self._initial.new(), {}, {}, {})

    def encode(self, instance: Instance[S]) -> bytes:
        """The state record's value."""
        return _HEAD + b'%d,"state":%b,"origins":%b,"timers":%b,"waiting":%b,"finished":%b}' % (
            instance.version,
            self._storage.encode(instance.state),
            _json(instance.origins),
            _json({name: due._asdict() for name, due in instance.timers.items()}),
            _json({id_: sent._asdict() for id_, sent in instance.waiting.items()}),
            b"true" if instance.finished else b"false",
        )

    @staticmethod
    def has_timers(value: bytes) -> bool:
        """Whether timers are set in a record, without decoding it."""
        # The last such field is the record's own: the state before it may have one, too.
        field = value.rfind(_TIMERS)
        return field >= 0 and not value.startswith(_NO_TIMERS, field)

    @staticmethod
    def is_instance(value: bytes) -> bool:
        """Whether a value may be the state record of an instance: it has the fields, and its timers can be read."""
        if not is_state(value) or not all(field in value for field in _FIELDS):
            return False
        try:
            if InstanceCodec.has_timers(value):
                InstanceCodec.timers(value)
        except ContractError:
            return False
        return True

    @staticmethod
    def timers(value: bytes) -> dict[str, Due]:
        """The timers in a record, by name, whatever the type of its state.

        Raises:
            ContractError: the record is not that of an instance.
        """
        try:
            return {name: _timer(timer) for name, timer in json.loads(value)["timers"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ContractError(f"unreadable state record {value[:80]!r}: {error!r}") from error

    def decode(self, value: bytes, seen: float) -> Instance[S]:
        """The instance in a record; `seen` is not used here.

        Raises:
            ContractError: the record is not one that `encode` wrote for this state type.
        """
        try:
            fields = json.loads(value)
            return Instance(
                int(fields["version"]),
                self._storage.decode(json.dumps(fields["state"])),
                {source: (offset, index) for source, (offset, index) in fields["origins"].items()},
                {name: _known(Due, timer) for name, timer in fields["timers"].items()},
                {id_: _known(SentCommand, sent) for id_, sent in fields["waiting"].items()},
                bool(fields["finished"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ContractError(f"unreadable state record {value[:80]!r}: {error!r}") from error


def _known(kind: type[N], fields: dict[str, str]) -> N:
    """The value, without fields that newer code has added."""
    return kind(**{name: fields[name] for name in kind._fields})  # type: ignore[attr-defined]  # a NamedTuple has them


def _timer(fields: dict[str, str]) -> Due:
    timer = _known(Due, fields)
    "".join(timer).encode()  # all are texts
    if time_in(timer.at.encode()) is None:
        raise ValueError(f"{timer.at!r} is no time with its zone")
    return timer


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() if value else b"{}"
