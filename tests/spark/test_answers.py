"""Answers are cut at their limit, partition by partition, and told as what they are."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from leftfold.spark.sql.results import Answer, AnswerLimit


def asked(frame: DataFrame, **limit: int) -> tuple[list[Any], str]:
    """The rows of an answer, and by what it was cut."""
    answer = Answer(frame, AnswerLimit(**limit))
    return list(answer), answer.cut


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("rows", "cut"), [(5, "rows"), (9, "rows"), (10, ""), (11, "")])
def test_no_more_rows_than_the_limit_are_told(spark: SparkSession, parts: int, rows: int, cut: str) -> None:
    numbers = [(number,) for number in range(10)]
    assert asked(spark.range(0, 10, 1, parts), rows=rows) == (numbers[:rows], cut)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("bytes_", "least", "most"), [(2500, 1, 2), (5500, 4, 5), (100, 0, 0)])
def test_no_more_bytes_than_the_limit_are_told(
    spark: SparkSession, parts: int, bytes_: int, least: int, most: int
) -> None:
    frame = spark.range(0, 10, 1, parts).selectExpr("repeat('x', 1000 + cast(id AS int))")
    rows, cut = asked(frame, bytes=bytes_)
    assert cut == "bytes"
    assert least <= len(rows) <= most


def test_the_order_of_a_question_is_that_of_its_answer(spark: SparkSession) -> None:
    frame = spark.range(0, 1000, 1, 5).orderBy("id", ascending=False)
    assert asked(frame, rows=300) == ([(999 - number,) for number in range(300)], "rows")
    assert asked(frame.limit(10)) == ([(999 - number,) for number in range(10)], "")


def test_columns_of_one_name_and_types_that_arrow_has_not_are_told(spark: SparkSession) -> None:
    answer = Answer(spark.sql("SELECT 1 AS a, 2 AS a, make_interval(1, 2) AS months, NULL AS nothing"), AnswerLimit())
    assert (answer.columns, list(answer)) == (["a", "a", "months", "nothing"], [(1, 2, "1 years 2 months", None)])


def test_nothing_is_an_answer(spark: SparkSession) -> None:
    assert asked(spark.range(0), rows=1) == ([], "")
