"""Views computed by DataFrame functions, where SQL does not say it well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from typing_extensions import TypeForm, TypeVar

from leftfold.messages import Event
from leftfold.query import TableView
from leftfold.reference import ReferenceFile

__all__ = ["FrameView", "Tables"]

E = TypeVar("E", bound=Event)
Row = TypeVar("Row")
K = TypeVar("K", default=str)
Tables = Mapping[str, DataFrame]
"""The tables of a view by name; one that is not asked for is not read."""


class FrameView(TableView[Row, K]):
    """Rows by a function of DataFrames, computed again as a whole at every refresh.

    Args:
        frame: makes the result of the tables: `lambda tables: tables["BasketCheckedOut"].groupBy("store_id").count()`.
            It must give the same rows for the same events: no clock, no randomness, no order of arrival. Unlike SQL,
            it is code that nobody checks.
        key, references, indexes: as for `QueryView`. version: raised whenever `frame` changes meaning.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        events: TypeForm[E],
        row: type[Row],
        key: Callable[[Row], K],
        frame: Callable[[Tables], DataFrame],
        references: Mapping[str, ReferenceFile] = {},  # never written to
        indexes: Sequence[str] = (),
        version: int = 1,
    ) -> None:
        self._named(name, events, row, indexes, version)
        self._tabled(key, references)
        self.frame = frame

    @property
    def code(self) -> tuple[object, ...]:
        """The functions that its rows depend on."""
        return (self.key, self.frame)

    def _definition(self) -> list[Any]:
        return [*super()._definition(), "frame"]
