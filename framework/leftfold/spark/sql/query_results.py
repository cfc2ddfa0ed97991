"""Results of ad-hoc queries, read no further than their limit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from leftfold.errors import ConfigurationError, ContractError
from leftfold.spark.sql.parser import parse
from leftfold.spark.sql.rules import QUESTION, check

__all__ = ["Answer", "AnswerLimit", "check_question"]


Batches = Iterator[pa.RecordBatch]
_ROWS, _BYTES = "rows", "bytes"


@dataclass(frozen=True)
class AnswerLimit:
    """The limit of an answer's size.

    Args:
        rows: how many rows. bytes: the size of all their values together, as Arrow holds them. Spark needs several
            times as much memory to hand them over.
    """

    rows: int = 100_000
    bytes: int = 32 << 20


class Answer:
    """The rows of a DataFrame, up to a limit.

    Each partition is cut by its own task, and the next is read when the rows before it are taken, so the whole answer
    is never held in memory. `cut` names the limit that was hit, `rows` or `bytes`, once all rows are taken; '' when the
    answer is complete. Times are aware and in UTC; those of the type `timestamp_ntz` have no zone.
    """

    def __init__(self, frame: DataFrame, limit: AnswerLimit) -> None:
        self.columns, self.cut, self._limit = frame.columns, "", limit
        fields = [StructField(f"c{number}", field.dataType) for number, field in enumerate(frame.schema)]
        sized = frame.toDF(*(field.name for field in fields))  # several columns may have one name
        for field in fields:
            if not _is_arrow(field.dataType):
                field.dataType = StringType()
                sized = sized.withColumn(field.name, sized[field.name].cast("string"))
        # PySpark makes times of the zone of this process, but those without a zone as they are.
        self._kinds, plain = [field.dataType for field in fields], [_without_zone(field.dataType) for field in fields]
        self._zoned = [number for number, field in enumerate(fields) if plain[number] != field.dataType]
        casts = {number: to_arrow_type(plain[number], timezone="UTC") for number in self._zoned}
        fields = [StructField(field.name, kind) for field, kind in zip(fields, plain, strict=True)]
        schema = StructType([*fields, StructField("size", LongType()), StructField("cut", StringType())])
        self._frame = sized.mapInArrow(lambda batches: _cut(batches, limit, casts), schema)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        rows = size = 0
        for row in self._frame.toLocalIterator():
            *values, bytes_, cut = row
            rows, size = rows + 1, size + (bytes_ or 0)
            self.cut = cut or (_ROWS if rows > self._limit.rows else _BYTES if size > self._limit.bytes else "")
            if self.cut:
                return
            for number in self._zoned:
                values[number] = _in_utc(values[number], self._kinds[number])
            yield tuple(values)


def _without_zone(kind: DataType) -> DataType:
    """The type with `timestamp_ntz` for every `timestamp` in it."""
    match kind:
        case TimestampType():
            return TimestampNTZType()
        case ArrayType():
            return ArrayType(_without_zone(kind.elementType), kind.containsNull)
        case MapType():
            return MapType(_without_zone(kind.keyType), _without_zone(kind.valueType), kind.valueContainsNull)
        case StructType():
            return StructType([StructField(one.name, _without_zone(one.dataType), one.nullable) for one in kind])
    return kind


def _in_utc(value: Any, kind: DataType) -> Any:
    """A value that was read without zones, with UTC in every `timestamp`."""
    if value is None:
        return None
    match kind:
        case TimestampType():
            return value.replace(tzinfo=UTC)
        case ArrayType():
            return [_in_utc(one, kind.elementType) for one in value]
        case MapType():
            return {_in_utc(key, kind.keyType): _in_utc(one, kind.valueType) for key, one in value.items()}
        case StructType():
            return Row(*kind.names)(*[_in_utc(one, of.dataType) for one, of in zip(value, kind, strict=True)])
    return value


def _is_arrow(kind: DataType) -> bool:
    """Whether Python tasks can take values of this type; some intervals they cannot."""
    try:
        to_arrow_type(kind, timezone="UTC")
    except PySparkException:
        return False
    return True


def _cut(batches: Batches, limit: AnswerLimit, casts: Mapping[int, pa.DataType]) -> Batches:
    """The rows of a partition with their sizes, up to the limit.

    A partition that is cut ends with a row that has no values but names the limit. A size is the mean of a batch.

    Args:
        casts: the types that columns get, by their numbers.
    """
    rows, size = limit.rows, limit.bytes
    for batch in batches:
        count, cut = min(batch.num_rows, rows), _ROWS
        if batch.slice(0, count).nbytes > size:
            count, cut = _fitting(batch, size, count), _BYTES
        part = batch.slice(0, count)
        if count:
            yield _with_sizes(_cast(part, casts), [-(-part.nbytes // count)] * count, [None] * count)
        if count < batch.num_rows:
            last = [pa.nulls(1, column.type) for column in _cast(batch.slice(0, 0), casts)]
            yield _with_sizes(last, [None], [cut])
            return
        rows, size = rows - count, size - part.nbytes


def _cast(batch: pa.RecordBatch, casts: Mapping[int, pa.DataType]) -> list[Any]:
    # Arrow casts a time with a zone to that of UTC, whatever its zone.
    return [one.cast(casts[number]) if number in casts else one for number, one in enumerate(batch.columns)]


def _fitting(batch: pa.RecordBatch, size: int, most: int) -> int:
    """How many of the first rows are no larger than a size in bytes."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if batch.slice(0, middle).nbytes <= size:
            least = middle
        else:
            most = middle - 1
    return least


def _with_sizes(columns: list[Any], sizes: list[int | None], cuts: list[str | None]) -> pa.RecordBatch:
    arrays = [*columns, pa.array(sizes, pa.int64()), pa.array(cuts, pa.string())]
    return pa.RecordBatch.from_arrays(arrays, [*(f"c{number}" for number in range(len(columns))), "size", "cut"])


_WHERE = "only questions are answered here"


def check_question(spark: SparkSession, text: str, tables: Collection[str]) -> None:
    """Checks that a statement only reads, before any of it runs.

    Args:
        tables: the names of the existing tables.

    Raises:
        ContractError: it is no SQL, or no query, or one that reads something else or calls programs.
    """
    try:
        check(parse(spark, text, _WHERE), tables, _WHERE, QUESTION)
    except ConfigurationError as error:
        raise ContractError(str(error)) from error
