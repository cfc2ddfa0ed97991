"""What other users of the machine see of Spark: neither its properties on command lines nor its log."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SESSION = """
import sys
from contextlib import suppress
import psutil
from leftfold.local import java_home
from leftfold.spark import SparkSettings, spark_session

properties = {
    "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword='canary one\\\\' -Dsecond=yes",
    "spark.ssl.trustStorePassword": "canary\\\\two",
    "spark.leftfold.sasl.password": " canary=three: # ü",
    "spark.leftfold.redis": "rediss://u:canary@h:1/0",
}
settings = SparkSettings(master="local[1]", java_home=java_home(), properties=properties)
with spark_session(settings) as spark:
    jvm = spark.sparkContext._jvm.java.lang.System
    assert jvm.getProperty("javax.net.ssl.trustStorePassword") == "canary one\\\\", "the JVM was told"
    assert jvm.getProperty("second") == "yes"
    assert jvm.getProperty("spark.ssl.trustStorePassword") == "canary\\\\two"
    assert {name: spark.conf.get(name) for name in properties} == properties
    assert spark.range(3).count() == 3
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    for process in family:
        with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # one that has ended has no command line
            print(" ".join(process.cmdline()))
"""


def run(cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment, "XDG_CACHE_HOME": str(cache)}
    words = [sys.executable, "-"]
    return subprocess.run(words, input=SESSION, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
def test_no_command_line_holds_a_property_and_the_log_is_the_users_alone(tmp_path: Path) -> None:
    cache, defaults = tmp_path / "cache", tmp_path / "theirs"
    defaults.write_text("spark.leftfold.theirs still-read\n", "utf-8")
    arguments = f"--properties-file {defaults} --conf spark.leftfold.other=1 pyspark-shell"
    done = run(cache, PYSPARK_SUBMIT_ARGS=arguments)
    assert done.returncode == 0, done.stderr
    assert "SparkSubmit" in done.stdout
    assert "canary" not in done.stdout
    log = cache / "leftfold" / "spark.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
