"""Answers are cut at their limit, partition by partition, and shown as what they are."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

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
