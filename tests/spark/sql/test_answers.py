"""Answers are cut at their limit, partition by partition, and shown as what they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from leftfold import App, Event, FoldView, Position
from leftfold.cli.log.sql import Asking
from leftfold.ports.bulk import BulkLog, BulkRecord, OffsetRange
from leftfold.runtime.operations.sql_queries import LogQuery, json_value
from leftfold.runtime.project import Usage
from leftfold.spark.sql.query_results import Answer, AnswerLimit


def asked(frame: DataFrame, **limit: int) -> tuple[list[Any], str]:
    """The rows of an answer, and by what it was cut."""
    answer = Answer(frame, AnswerLimit(**limit))
    return list(answer), answer.cut


@pytest.mark.parametrize(("rows", "parts", "cut"), [(5, 1, "rows"), (9, 3, "rows"), (10, 3, ""), (11, 1, "")])
def test_no_more_rows_than_the_limit_are_shown(spark: SparkSession, rows: int, parts: int, cut: str) -> None:
    numbers = [(number,) for number in range(10)]
    assert asked(spark.range(0, 10, 1, parts), rows=rows) == (numbers[:rows], cut)


@pytest.mark.parametrize(("bytes_", "parts", "least", "most"), [(2500, 3, 1, 2), (5500, 1, 4, 5), (100, 1, 0, 0)])
def test_no_more_bytes_than_the_limit_are_shown(
    spark: SparkSession, bytes_: int, parts: int, least: int, most: int
) -> None:
    frame = spark.range(0, 10, 1, parts).selectExpr("repeat('x', 1000 + cast(id AS int))")
    rows, cut = asked(frame, bytes=bytes_)
    assert cut == "bytes"
    assert least <= len(rows) <= most


def test_the_order_of_a_question_is_that_of_its_answer(spark: SparkSession) -> None:
    frame = spark.range(0, 1000, 1, 3).orderBy("id", ascending=False)
    assert asked(frame, rows=300) == ([(999 - number,) for number in range(300)], "rows")
    assert asked(frame.limit(10)) == ([(999 - number,) for number in range(10)], "")


def test_columns_of_one_name_types_that_arrow_has_not_and_no_rows_are_answers(spark: SparkSession) -> None:
    answer = Answer(spark.sql("SELECT 1 AS a, 2 AS a, make_interval(1, 2) AS months, NULL AS nothing"), AnswerLimit())
    assert (answer.columns, list(answer)) == (["a", "a", "months", "nothing"], [(1, 2, "1 years 2 months", None)])
    assert asked(spark.range(0), rows=1) == ([], "")


@pytest.mark.usefixtures("in_berlin")
def test_times_of_an_answer_are_those_of_utc_whatever_the_zone_of_the_machine(spark: SparkSession) -> None:
    """The first two are one hour apart, and one time on a clock in Berlin."""
    zoned = [f"timestamp'{text}'" for text in ("2026-10-25 00:30:00", "2026-10-25 01:30:00", "0001-01-01 00:00:00")]
    columns = ", ".join([*zoned, "timestamp_ntz'2026-07-01 12:00:00'", "CAST(NULL AS timestamp)"])
    at, plain = datetime(2026, 7, 1, 12, tzinfo=UTC), datetime(2026, 7, 1, 12)  # noqa: DTZ001
    first, second = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    found = [(first, second, datetime(1, 1, 1, tzinfo=UTC), plain, None)]
    assert asked(spark.sql(f"SELECT {columns}")) == (found, "")
    nested = (
        "named_struct('at', t, 'n', 1, 'of', array(t, NULL))",
        "map(t, CAST(t AS timestamp_ntz))",
        "CAST(NULL AS ARRAY<TIMESTAMP>)",
    )
    frame = spark.sql("SELECT timestamp'2026-07-01 12:00:00' AS t")
    assert asked(frame.selectExpr(*nested)) == ([(Row(at=at, n=1, of=[at, None]), {at: plain}, None)], "")
    assert asked(spark.range(3).selectExpr(zoned[0]), rows=1) == ([(first,)], "rows")


class NoEvents(BulkLog):
    """A log whose topics are empty."""

    def partitions(self, topic: str) -> int:
        return 1

    def stable_ends(self, topics: Iterable[str]) -> Position:
        return Position({})

    def starts(self, topics: Iterable[str]) -> Position:
        return Position({})

    def identities(self, topics: Iterable[str]) -> dict[str, str]:
        return {}

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


class Änderung(Event, category="orders-eu", key="order"):  # noqa: PLC2401  # what is tested
    order: str


view = FoldView("orders", events=Änderung, row=Änderung, evolve=lambda row, event: event)


@pytest.fixture
def queries(spark: SparkSession) -> Iterator[LogQuery]:
    with LogQuery(App("shop", views=[view]), "localhost:1", None) as found:
        found._log = NoEvents
        yield found


def printed(queries: LogQuery, form: str, statement: str, capsys: pytest.CaptureFixture[str]) -> str:
    Asking(queries, form=form, rows=10, megabytes=1).answer(statement)
    return capsys.readouterr().out


def test_a_category_with_a_hyphen_is_a_table(queries: LogQuery, capsys: pytest.CaptureFixture[str]) -> None:
    """Its name, and one outside of ASCII, stand in back quotes."""
    assert (
        printed(queries, "json", "SELECT count(*) AS n FROM `orders-eu` NATURAL JOIN `Änderung`", capsys) == '{"n":0}\n'
    )
    assert printed(queries, "csv", "SELECT 1 AS one", capsys).split() == ["one", "1"]


class Tables(LogQuery):
    """Tables as a look on Spark has found them."""

    def look(self) -> None:
        """They stay as they are."""
        self._tables = {name: SimpleNamespace(dtypes=[("order", "string")]) for name in ("orders-eu", "Placed")}


@pytest.mark.parametrize("name", ["orders-eu", "`orders-eu`"])
def test_tables_are_listed_and_described_by_their_names_in_sql(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(f".tables\n.schema {name}\n"))
    Asking(Tables(App("shop", views=[view]), "localhost:1", None), form="json", rows=10, megabytes=1).converse()
    found = capsys.readouterr()
    assert found.out.replace("sql> ", "").split() == ["Placed", "`orders-eu`", "order", "string"]


def test_a_struct_with_two_fields_of_one_name_loses_none() -> None:
    assert json_value(Row(at=Row("_key", "_key")("a", b"b"))) == {"at": ["a", "Yg=="]}
    assert json_value([Row(a=1, b=Row(c=2))]) == [{"a": 1, "b": {"c": 2}}]


@pytest.mark.usefixtures("in_berlin")
def test_times_and_bytes_are_printed_alike_in_every_form(queries: LogQuery, capsys: pytest.CaptureFixture[str]) -> None:
    statement = "SELECT timestamp'2026-07-01 12:00:00' AS at, map('x', unhex('ff00')) AS more"
    found = printed(queries, "json", statement, capsys)
    assert found == '{"at":"2026-07-01T12:00:00Z","more":{"x":"/wA="}}\n'
    for form, more in {"csv": '{""x"":""/wA=""}', "table": "{'x': '/wA='}"}.items():
        found = printed(queries, form, statement, capsys)
        assert "2026-07-01T12:00:00Z" in found
        assert more in found


def test_columns_of_one_name_are_no_json(queries: LogQuery, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Usage, match="^several columns are named a, which JSON cannot hold"):
        printed(queries, "json", "SELECT 1 AS a, 2 AS a, 3 AS b", capsys)
    assert capsys.readouterr().out == ""
    assert printed(queries, "csv", "SELECT 1 AS a, 2 AS a", capsys).split() == ["a,a", "1,2"]
