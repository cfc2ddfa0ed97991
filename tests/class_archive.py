"""Spark's classes, mapped instead of loaded: its JVM starts in half the time, and tests start it a hundred times."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from leftfold.local import java_home

__all__ = ["START", "use_class_archive"]

START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that end before a thorough compiler would have paid."""
_SECONDS = 240.0
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


def use_class_archive(folder: Path) -> None:
    """Makes the archive unless it is there, and has every Spark that this process and its children start use it."""
    archive = folder / f"spark-{pyspark.__version__}.jsa"
    os.environ["SPARK_LAUNCHER_OPTS"] = START
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{START} -XX:SharedArchiveFile={archive} -Xlog:disable"


def _make(archive: Path) -> None:
    new = archive.with_suffix(".new")
    options = f"{START} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
    command = [sys.executable, "-c", _PROGRAM]
    java = {"JAVA_HOME": str(java_home()), "SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run(command, env=os.environ | java, check=True, timeout=_SECONDS, capture_output=True)
    new.rename(archive)
