"""The check of questions to the log: whatever only reads its tables, and runs no programs."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import SparkSession

from leftfold.errors import ConfigurationError, ContractError
from leftfold.spark.sql.check import QUESTION, check
from leftfold.spark.sql.parser import parse

__all__ = ["check_question"]

_WHERE = "only questions are answered here"


def check_question(spark: SparkSession, text: str, tables: Collection[str]) -> None:
    """Checks that a statement only reads, before anything of it runs.

    Args:
        tables: the names of the tables that there are.

    Raises:
        ContractError: it is no SQL, or no question, or one that reads something else or calls programs.
    """
    try:
        check(parse(spark, text, _WHERE), tables, _WHERE, QUESTION)
    except ConfigurationError as error:
        raise ContractError(str(error)) from error
