"""A Spark that died, of a question or by force, is started again; what it left on disk is gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.faults

SCRIPT = """
import os, sys
from pathlib import Path
from pyspark import SparkContext
from leftfold.local import java_home
from leftfold.spark import SparkSettings, open_session, spark_session
from leftfold.spark.sql.results import Answer, AnswerLimit
from leftfold.spark.core.jvm import is_alive
from leftfold.spark.core.task_io import cause_of

LARGE = "SELECT id, repeat('x', 1000) FROM range(0, 2000000, 1, 1)"  # in one partition, and four times the memory
WITHIN_A_TASK = "SELECT max(length(repeat('x', 1500000000 + cast(id AS int)))) FROM range(1)"
settings = SparkSettings(master="local[1]", memory="512m", java_home=java_home())

def failure(work):
    try:
        work()
    except Exception as error:
        return str(cause_of(error))

with spark_session(settings) as spark:
    if sys.argv[1] == "a large answer":
        answer = Answer(spark.sql(LARGE), AnswerLimit(bytes=10 << 20))
        count = sum(1 for _ in answer)
        print(answer.cut, 0 < count < 12_000)
        assert is_alive() and open_session(settings).sparkContext is spark.sparkContext
    elif sys.argv[1] == "twin: all of it":
        print(failure(lambda: sum(1 for _ in spark.sql(LARGE).toLocalIterator())))
    elif sys.argv[1] == "a question that no memory is enough for":
        print(failure(lambda: spark.sql(WITHIN_A_TASK).collect()))
    else:
        process = SparkContext._gateway.proc
        process.kill()
        process.wait()
        print(failure(lambda: spark.sql("SELECT 1").collect()))
    print(open_session(settings).sql("SELECT 2 AS two").collect()[0].two)
print(SparkContext._active_spark_context)
with spark_session(settings) as spark:
    print(spark.sql("SELECT 3 AS three").collect()[0].three)
"""
DIED = "Spark has died or run out of memory; ask for less, or give it more by LEFTFOLD_SPARK_MEMORY, as in 4g"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("a large answer", "bytes True"),
        ("twin: all of it", DIED),
        ("a question that no memory is enough for", DIED),
        ("killed", DIED),
    ],
)
def test_the_next_question_is_answered(what: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, what], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [said, "2", "None", "3"], done.stderr
    assert done.stderr == ""
