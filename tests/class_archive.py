"""Classes of Spark and Kafka, mapped instead of loaded: tests start either JVM a hundred times, each in less time."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

from leftfold.local import LocalSettings, embedded, java_home
from leftfold.local.jars import locked

__all__ = ["START", "use_archive_of_kafka", "use_archive_of_spark"]

START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that end before a thorough compiler would have paid."""
KAFKA_JVM = "LEFTFOLD_LOCAL_KAFKA_JVM"
_KAFKA_JVM: tuple[str, ...] = LocalSettings.model_fields["kafka_jvm"].default
_SECONDS = 1200.0
_PROGRAM = """
from pyspark import SparkContext
from pyspark.sql import SparkSession
quiet = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
spark = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()
spark.range(100).selectExpr("id % 3 AS k", "id").groupBy("k").sum("id").collect()
spark.stop()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def use_archive_of_spark(folder: Path) -> None:
    """Has every Spark that this process and its children start use the archive, which is made unless it is there."""
    os.environ["SPARK_LAUNCHER_OPTS"] = START
    archive = _made(folder / f"spark-{pyspark.__version__}.jsa", _archive_spark)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{START} -XX:SharedArchiveFile={archive} -Xlog:disable"


def use_archive_of_kafka(folder: Path) -> None:
    """Has every embedded Kafka that this process and its children start use the archive, as above."""
    jars = sha256("".join(jar.coordinates for jar in locked("kafka")).encode()).hexdigest()
    archive = _made(folder / f"kafka-{jars[:12]}.jsa", _archive_kafka)
    os.environ[KAFKA_JVM] = json.dumps([*_KAFKA_JVM, f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"])


def _made(archive: Path, make: Callable[[Path], None]) -> Path:
    with (archive.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            new = archive.with_suffix(".new")
            make(new)
            new.rename(archive)
    return archive


def _archive_spark(new: Path) -> None:
    options = f"{START} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
    command = [sys.executable, "-c", _PROGRAM]
    java = {"JAVA_HOME": str(java_home()), "SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run(command, env=os.environ | java, check=True, timeout=_SECONDS, capture_output=True)


def _archive_kafka(new: Path) -> None:
    kafka = frozenset({"kafka"})
    with TemporaryDirectory() as place:
        # The storage is formatted by a JVM of its own, which would overwrite the archive of the broker's or be it.
        with embedded(Path(place), want=kafka):
            pass
        flags = (*_KAFKA_JVM, f"-XX:ArchiveClassesAtExit={new}", "-Xlog:disable")
        with embedded(Path(place), settings=LocalSettings(kafka_jvm=flags, stop_timeout=_SECONDS), want=kafka):
            pass
