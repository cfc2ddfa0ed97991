"""The image's entry point does for Spark on Kubernetes what the driver expects of it, and runs everything else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from leftfold.cli.pod import pod_command
from leftfold.errors import ConfigurationError
from tests.spark.cluster.standalone import SPARK_HOME

ROOT = Path(__file__).parents[3]
TOLD = {
    "SPARK_HOME": str(SPARK_HOME),
    "JAVA_HOME": "/java",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "4",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "exec-3",
    "SPARK_EXECUTOR_MEMORY": "1g",
    **{f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in (10, 2, 0)},
}


def test_an_executor_gets_its_identity() -> None:
    command = pod_command(["executor"], TOLD)
    assert command[0] == "/java/bin/java"
    assert command[1:6] == ["-Dn=0", "-Dn=2", "-Dn=10", "-Xms1g", "-Xmx1g"]
    assert command[command.index("-cp") + 1] == f"{SPARK_HOME}/jars/*"
    options = command[command.index("--driver-url") :]
    assert dict(zip(options[::2], options[1::2], strict=True))["--podName"] == "exec-3"


def test_the_executors_class_is_in_sparks_jars_and_takes_these_options() -> None:
    backend = next(word for word in pod_command(["executor"], TOLD) if word.startswith("org.apache"))
    (jar,) = (SPARK_HOME / "jars").glob("spark-kubernetes_*.jar")
    with ZipFile(jar) as archive:
        code = archive.read(backend.replace(".", "/") + "$.class")
    for option in (word for word in pod_command(["executor"], TOLD) if word.startswith("--")):
        assert option.encode() in code, option


def test_an_executor_without_its_settings_says_what_is_missing() -> None:
    reported = {name: value for name, value in TOLD.items() if name != "SPARK_DRIVER_URL"}
    with pytest.raises(ConfigurationError, match="an executor needs SPARK_DRIVER_URL"):
        pod_command(["executor"], reported)


def test_a_driver_is_spark_submit_in_client_mode() -> None:
    command = pod_command(["driver", "--properties-file", "p", "local:///app/x.py", "rebuild"], TOLD)
    assert Path(command[0]).is_file()
    assert command[-6:] == ["--deploy-mode", "client", "--properties-file", "p", "local:///app/x.py", "rebuild"]


def test_everything_else_is_run_as_it_is() -> None:
    assert pod_command(["leftfold", "run"], {}) == ["leftfold", "run"]
    with pytest.raises(ConfigurationError, match="nothing to run"):
        pod_command([], {})
    command = [sys.executable, "-m", "leftfold.cli.pod", sys.executable, "-c", "print('here')"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "here\n"


def test_our_image_begins_with_it() -> None:
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert entry == '["python", "-m", "leftfold.cli.pod"]'
