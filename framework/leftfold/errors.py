"""The exception classes of Leftfold, in one tree.

LeftfoldError
├── DomainError              a business rule rejected the command; declared by the command, typed fields, never retried
├── ConflictError            the stream is not at the expected version; read it again and decide again
├── OutcomeUnknown           the deadline passed and the command may have happened; send again with the same id
├── DecisionFailed           `decide` raised something that is no DomainError; a bug in the service
├── ContractError            bytes, types, versions or ids break the contract; the message is dead-lettered
├── StaleViewError           the view has not reached the position asked for
├── ChangesNotKept           the change streams of a view start later; read all rows and watch from there
├── ViewNotBuilt             no generation of the view with this code's schema is live yet
├── ConfigurationError       a definition or a setting is wrong, or a right is missing (exit 78)
└── InfrastructureError      a broker, a server or a disk is not reachable (exit 69)
    ├── LogGap              events that a fold needs are missing from the log; name the archive that holds them
    └── Fenced               another process has taken over; this one must end (exit 75)
"""

from __future__ import annotations

import dataclasses
import string
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

if TYPE_CHECKING:
    from leftfold.model.position import Position

__all__ = [
    "ChangesNotKept",
    "ConfigurationError",
    "ConflictError",
    "ContractError",
    "DecisionFailed",
    "DomainError",
    "Fenced",
    "InfrastructureError",
    "LeftfoldError",
    "LogGap",
    "OutcomeUnknown",
    "StaleViewError",
    "ViewNotBuilt",
    "is_interruption",
    "refused",
]


class LeftfoldError(Exception):
    """The base class of all errors that Leftfold raises on purpose."""

    exit_code: ClassVar[int] = 1


@dataclass_transform(kw_only_default=True, eq_default=False)
class DomainError(LeftfoldError):
    """A rejection by a business rule: subclass it with typed fields and a message template.

    Two errors are equal when they are of one class with equal fields. A template names fields only:
    `class BasketClosed(DomainError, message="basket {basket_id} is already checked out")`.
    """

    __template: ClassVar[str] = ""

    def __init_subclass__(cls, *, message: str = "") -> None:
        super().__init_subclass__()
        dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)
        cls.__template = message or cls.__name__
        names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # just made one
        used = {name for _, name, _, _ in string.Formatter().parse(cls.__template) if name is not None}
        if used - names:
            raise ConfigurationError(
                f"{cls.__name__}: the message names {sorted(used - names)}, which are no fields of the error; "
                f"declare them or take them out of the message"
            )

    def _fields(self, *, with_made: bool = False) -> dict[str, Any]:
        """The fields that its class is called with; `with_made`: also those with init=False."""
        if not dataclasses.is_dataclass(self):
            return {}  # DomainError itself may be raised
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init or with_made}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, DomainError) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), *map(repr, self._fields().values())))

    def __str__(self) -> str:
        if not self.__template:
            return super().__str__()
        try:
            return self.__template.format_map(self._fields(with_made=True))
        except Exception:  # noqa: BLE001  # a field has another type than the template expects, or is of user code
            return f"{self.__template} {self!r}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._fields().items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._fields())


def _rebuild(cls: type[DomainError], fields: dict[str, Any]) -> DomainError:
    return cls(**fields)


class ConflictError(LeftfoldError):
    """The stream is not at the version that the sender of the command expected.

    Args:
        key: the stream key. expected, actual: stream versions, 0 = the stream does not exist.
    """

    def __init__(self, key: str, expected: int, actual: int) -> None:
        super().__init__(
            f"stream {key!r} is at version {actual}, not at {expected}; read it again and decide on what it is now"
        )
        self.key, self.expected, self.actual = key, expected, actual

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.expected, self.actual)


class OutcomeUnknown(LeftfoldError):
    """No answer came in time: the command may have happened; sending it again with `id=command_id` is safe."""

    def __init__(self, command_id: str, why: str = "no answer before the deadline") -> None:
        super().__init__(
            f"the outcome of command {command_id} is not known: {why}; send it again with id={command_id!r}"
        )
        self.command_id, self.why = command_id, why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.command_id, self.why)


class DecisionFailed(LeftfoldError):
    """`decide` or `evolve` raised something that is not a declared DomainError; nothing was written."""


class ContractError(LeftfoldError):
    """Bytes, headers, types, versions or ids of a message break the contract."""


class StaleViewError(LeftfoldError):
    """The view did not reach the position asked for within the timeout.

    Args:
        asked: the position that the read waited for. reached: the position of the bucket that was read.
    """

    def __init__(self, message: str, asked: Position | None = None, reached: Position | None = None) -> None:
        super().__init__(message)
        self.asked, self.reached = asked, reached


class ChangesNotKept(LeftfoldError):
    """The change streams of a view do not reach back to the position to watch from."""


class ViewNotBuilt(LeftfoldError):
    """No generation of this view is live for this code; run a projector or a rebuild."""


class ConfigurationError(LeftfoldError):
    """A definition or setting is wrong; the message names it and the correction."""

    exit_code = 78


class InfrastructureError(LeftfoldError):
    """A server, a disk or the network is not reachable; the message names it and what to try."""

    exit_code = 69


class LogGap(InfrastructureError):
    """Events that a fold needs are missing from the topic and from every archive; nothing is folded."""


class Fenced(InfrastructureError):
    """Another process owns this work now, or a call outlived its deadline; end, and let the supervisor restart."""

    exit_code = 75


def refused(text: str) -> ConfigurationError:
    """The error for brokers that refuse a login or an operation: what was refused, and which settings to check."""
    advice = "look at security_protocol, sasl_* and ssl_* of the settings, and at the cluster's ACLs"
    return ConfigurationError(f"{text}; {advice} (leftfold topics acl)")


def is_interruption(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused the error: it arrived inside C code, or another error was raised while it propagated."""
    seen: set[int] = set()  # an error that was raised from itself is its own cause
    while error is not None and not isinstance(error, KeyboardInterrupt) and id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt)
