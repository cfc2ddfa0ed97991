"""Streams of users: agents of Faust over events, kept at work by `leftfold run`; a value that knows no Faust."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import TypeForm, TypeVar

from leftfold.errors import ConfigurationError
from leftfold.messages import Event
from leftfold.streamed import StreamedView
from leftfold.unions import members

__all__ = ["Streaming"]

E = TypeVar("E", bound=Event)
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class Streaming:
    """Says how the agents and tables of a stream are made.

    Args:
        name: lower case; part of its consumer groups and of the changelogs of its tables.
        events: a closed union of what its agents go through, of any category.
        work: called with a `leftfold.faust.EventStreams` and with `StreamedRows` for each view, in their order; it
            makes tables and agents and returns.
        views: what it keeps; then one process at a time does it.
        settings: of Faust, such as `{"store": "rocksdb://"}`.

    Raises:
        ConfigurationError: something does not fit together; the message names the mend.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        events: TypeForm[E],
        work: Callable[..., None],
        views: Sequence[StreamedView[Any, Any]] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.work, self.views, self.settings = name, work, tuple(views), dict(settings or {})
        where = f"stream {name}"
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{where}: a name is lower case letters, digits, _ and -, such as 'lately'")
        self.events: tuple[type[Event], ...] = members(events, Event, f"{where}: events")
        for view in self.views:
            if missing := sorted(set(view.categories).difference(self.categories)):
                raise ConfigurationError(
                    f"{where}: view {view.name} is made of events of {', '.join(missing)}; add them to the stream's "
                    f"events="
                )

    @property
    def categories(self) -> tuple[str, ...]:
        """Those whose events it goes through, in alphabetical order."""
        return tuple(sorted({cls.__leftfold__.category for cls in self.events}))

    def __repr__(self) -> str:
        return f"Streaming({self.name!r})"
