"""Rows of a query view or a frame view from given events, for users' tests, without Kafka and Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import TypeVar

from leftfold.engine.rebuild.refresh import computed
from leftfold.errors import ContractError
from leftfold.model.computed_views import TableView
from leftfold.model.messages import Event
from leftfold.model.position import Recorded
from leftfold.spark.core.session import SparkSettings, open_session
from leftfold.spark.core.task_io import job_errors
from leftfold.spark.queries.compute import RowReader, compute, own_session
from leftfold.spark.tables.columns import EventTable
from leftfold.spark.tables.log_frames import table_of

__all__ = ["TIME", "rows"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)
TIME = datetime(2000, 1, 1, tzinfo=UTC)
"""`_time` of events that are given without their metadata."""


def rows(
    view: TableView[Row, K], /, *events: Event | Recorded[Any], spark: SparkSession | None = None
) -> Mapping[K, Row]:
    """Computes the view's rows from these events, each read back as it would be stored.

    Args:
        events: plain, or as `Recorded` where the query uses metadata; of a plain one `_key` is its stream,
            `_sequence` counts the events of the stream, `_offset` all of them, and `_time` is `TIME`.
        spark: a session to use; else the one of this process, started at the first call.

    Raises:
        ConfigurationError: the SQL is not allowed, or does not fit the tables or the row.
        ContractError: two rows have one key, or a value cannot be stored.
    """
    session = own_session(spark or open_session(SparkSettings()), shuffles=1)
    recorded = _recorded(events)

    def open_table(session: SparkSession, table: EventTable) -> DataFrame:
        found = [one for one in recorded if type(one.event) is table.event]
        return session.createDataFrame(pa.Table.from_batches([table_of(found, table.schema, table.row_of)]))

    frame, codec = compute(session, view, open_table), view.rows
    with job_errors():
        table = frame.toArrow()
    made: dict[str, Row] = {}
    for batch in table.to_batches():
        for row in RowReader(view).rows(batch):
            _, key, fields, _ = computed(view, row, buckets=1)
            if key in made:
                raise ContractError(f"view {view.name}: the query gives several rows for the key {key}")
            made[key] = codec.decode(dict(zip(codec.columns, fields, strict=True)))
    return {view.keys.decode(key): row for key, row in made.items()}


def _recorded(events: Sequence[Event | Recorded[Any]]) -> list[Recorded[Any]]:
    sequences: dict[tuple[str, str], int] = {}
    found = []
    for offset, event in enumerate(events):
        if isinstance(event, Recorded):
            found.append(event)
            continue
        spec = type(event).__leftfold__
        stream = spec.category, str(getattr(event, spec.key))
        sequences[stream] = version = sequences.get(stream, 0) + 1
        found.append(Recorded(event=event, key=stream[1], id="", time=TIME, version=version, offset=offset))
    return found
