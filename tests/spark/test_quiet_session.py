"""A wrong query is an error to whoever asked, and nothing on standard error."""

from __future__ import annotations

import subprocess
import sys

import pytest

WRONG = """
import sys
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from leftfold.local import java_home
from leftfold.spark import SparkSettings, spark_session

with spark_session(SparkSettings(master="local[1]", java_home=java_home())) as spark:
    if sys.argv[1] == "as pyspark has it":
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = False
    try:
        spark.sql("SELECT nope").collect()
    except AnalysisException as error:
        print(str(error).splitlines()[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("logging", ["as it is", "as pyspark has it"])
def test_a_wrong_query_does_not_fill_the_terminal_with_java(logging: str) -> None:
    done = subprocess.run([sys.executable, "-c", WRONG, logging], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[UNRESOLVED_COLUMN")
    if logging == "as it is":
        assert done.stderr == ""
    else:
        assert "org.apache.spark.sql.AnalysisException" in done.stderr, "which is what is kept quiet"
