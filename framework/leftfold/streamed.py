"""Views whose rows a stream of the user's own computes, such as windows of Faust; written by the bucket protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NoReturn

from typing_extensions import TypeForm, TypeVar

from leftfold.errors import ConfigurationError
from leftfold.keys import KeyCodec, key_type
from leftfold.messages import Event
from leftfold.view import View

__all__ = ["StreamedView"]

E = TypeVar("E", bound=Event)
Row = TypeVar("Row")
K = TypeVar("K", default=str)


class StreamedView(View[Row, K], Generic[Row, K]):
    """Rows that somebody else computes from events and hands over one by one, read like those of any view.

    Neither tails nor rebuilds know how to fold it: what keeps it goes through the log once more, into a new generation.

    Args:
        events: what the rows are computed from: positions of these topics are in its marks.
        key: the row's key, a plain lambda on fields or a function with a return type.
        version: raised when the rows change meaning; readers then wait until the new ones have caught up.
    """

    folded = False
    streamed = True
    key: Callable[[Row], K]

    def __init__(
        self,
        name: str,
        /,
        *,
        events: TypeForm[E],
        row: type[Row],
        key: Callable[[Row], K],
        indexes: Sequence[str] = (),
        version: int = 1,
    ) -> None:
        self._named(name, events, row, indexes, version)
        self.key = key
        self.keys = KeyCodec(key_type(key, [row], f"view {name}"), f"view {name}")

    def row_key(self, row: Row) -> str:
        """The encoded key of a row."""
        return self.keys.encode(self.key(row))

    def touches(self, event: Event, stream: str) -> NoReturn:
        """Raises ConfigurationError: nothing is folded here."""
        raise ConfigurationError(f"view {self.name} is kept by a stream of its own and cannot be folded")
