"""Which errors of Spark say that files of a checkpoint are lost or damaged, and which error of a query is raised."""

from __future__ import annotations

import json
import threading
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest

from leftfold.errors import Fenced
from leftfold.spark.queries.query_stream import _LOST, _wait

TRANSIENT = {
    "AUTO_SNAPSHOT_REPAIR_FAILED",
    "FAILED_TO_GET_CHANGELOG_WRITER",
    "HDFS_STORE_PROVIDER_OUT_OF_MEMORY",
    "INVALID_CHANGE_LOG_WRITER_VERSION",
    "ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY",
    "SNAPSHOT_PARTITION_ID_NOT_FOUND",
    "UNCATEGORIZED",
    "UNEXPECTED_VERSION",
    "UNRELEASED_THREAD_ERROR",
}
"""Conditions that a lost file alone does not explain, or that only readers of state have."""


def conditions() -> dict[str, Any]:
    """The error conditions of the Spark that is installed."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-common-utils_*.jar")
    with zipfile.ZipFile(jar) as files:
        found: dict[str, Any] = json.loads(files.read("error/error-conditions.json"))
    return found


def test_every_condition_of_a_state_that_cannot_be_loaded_is_known() -> None:
    parent = "CANNOT_LOAD_STATE_STORE"
    kinds = conditions()[parent]["subClass"]
    text = f"[{parent}.{{}}] An error occurred during loading state.  SQLSTATE: 58030"
    assert {kind for kind in kinds if not _LOST.search(text.format(kind))} == TRANSIENT


@pytest.mark.parametrize(
    "condition",
    [
        "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED",
        "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
        "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
    ],
)
def test_conditions_of_lost_files_are_conditions_of_spark(condition: str) -> None:
    assert condition in conditions()
    assert _LOST.search(f"[{condition}] because of what follows")


NO_CONDITION = "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.  SQLSTATE: 58030\n"


@pytest.mark.parametrize(
    ("cause", "is_lost"),
    [
        ("java.io.FileNotFoundException: File file:/data/c/owner_sums/1-ab/9f/state/0/1/12.zip does not exist", True),
        ("java.io.FileNotFoundException: File does not exist: /c/owner_sums/1-ab/9f/state/0/1/SSTs/a.sst", True),
        ("java.io.FileNotFoundException: No such file or directory: s3a://c/1-ab/9f/state/0/1/12.zip", True),
        ("java.util.zip.ZipException: invalid entry CRC", True),
        ("org.apache.hadoop.fs.ChecksumException: Checksum error: file:/c/state/0/1/12.zip at 0 exp: 1 got: 2", True),
        ("java.io.FileNotFoundException: /data/c/1-ab/9f/state/0/1/12.zip (Too many open files)", False),
        ("java.io.FileNotFoundException: /tmp/spark-1/StateStoreId/workingDir/7 (No such file or directory)", False),
        ("java.io.IOException: No space left on device", False),
        ("java.lang.InterruptedException: task killed", False),
        ("org.rocksdb.RocksDBException: IO error: No space left on device", False),
    ],
)
def test_a_state_that_cannot_be_loaded_without_a_condition_is_lost_where_its_cause_is(
    cause: str, is_lost: bool
) -> None:
    assert (
        _LOST.search(f"{NO_CONDITION}\tat org.apache.spark\nCaused by: {cause}\n\tat java.base") is not None
    ) is is_lost


class _Unstoppable:
    """A query of Spark that ends and whose JVM fails at `stop`."""

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802  # Spark's name
        return True

    def stop(self) -> None:
        raise ConnectionError("the JVM has died")


def test_an_error_of_a_query_is_not_replaced_by_one_of_ending_it() -> None:
    stop, query = threading.Event(), _Unstoppable()
    with pytest.raises(Fenced, match="another run of this stream"):
        _wait(query, stop)  # type: ignore[arg-type]
    stop.set()
    with pytest.raises(ConnectionError, match="the JVM has died"):
        _wait(query, stop)  # type: ignore[arg-type]
