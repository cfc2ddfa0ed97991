"""Runs checks of the state topic on Spark, partition by partition, without a shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql import SparkSession

from leftfold.engine.state_check import PartitionCheck, StateCheck
from leftfold.garbage import tuned_gc
from leftfold.spark.items import Batches
from leftfold.spark.outcome import cause_of
from leftfold.spark.progress import Teller, listening

__all__ = ["spark_checks"]



def spark_checks(spark: SparkSession) -> Callable[[StateCheck, Callable[[int], None]], list[PartitionCheck]]:
    """Checks all partitions of a category on a session."""

    def run(check: StateCheck, tell: Callable[[int], None]) -> list[PartitionCheck]:
        with listening(spark, tell) as address:

            def each(batches: Batches) -> Batches:
                tuned_gc()
                with closing(Teller(address)) as teller:
                    for batch in batches:
                        for number in batch.column(0).to_pylist():
                            line = check.run(int(number or 0), teller).to_json()
                            yield pa.RecordBatch.from_pydict({"line": [line]})

            count = len(check.partitions)
            try:
                rows = spark.range(0, count, 1, count).mapInArrow(each, "line string").collect()
            except Exception as error:
                raise cause_of(error) from error
        return [PartitionCheck.from_json(row.line) for row in rows]

    return run
