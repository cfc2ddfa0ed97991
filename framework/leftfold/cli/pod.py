"""The entry point of the container image: starts Spark's executor or driver on Kubernetes, or any other command.

`ENTRYPOINT ["python", "-m", "leftfold.cli.pod"]` in an image replaces the entry script of Spark's own images. Spark's
driver sets the variables that are read here, in the pods of its executors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from leftfold.errors import ConfigurationError

__all__ = ["main", "pod_command"]

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_TOLD = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_OPTION = "SPARK_JAVA_OPT_"


def main() -> None:
    """Replaces this process with the requested one."""
    spec = find_spec("pyspark")
    home = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    environment = {"SPARK_HOME": str(home), **os.environ}
    command = pod_command(sys.argv[1:], environment)
    os.execvpe(command[0], command, environment)  # noqa: S606  # the container's own command


def pod_command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command for the arguments of a container.

    Raises:
        ConfigurationError: there are no arguments, or a variable is missing that Spark's driver sets for executors.
    """
    match list(arguments):
        case []:
            raise ConfigurationError("nothing to run; say what, such as: leftfold run")
        case ["executor", *_]:
            return _executor(environment)
        case ["driver", *rest]:
            return _driver(rest, environment)
        case command:
            return command


def _executor(environment: Mapping[str, str]) -> list[str]:
    missing = [name for name in (*_TOLD.values(), "SPARK_EXECUTOR_MEMORY") if not environment.get(name)]
    if missing:
        raise ConfigurationError(f"an executor needs {', '.join(missing)}, which Spark's driver sets on its pods")
    numbered = {name: value for name, value in environment.items() if name.startswith(_OPTION)}
    options = [numbered[name] for name in sorted(numbered, key=lambda name: int(name.removeprefix(_OPTION)))]
    home, memory = environment["SPARK_HOME"], environment["SPARK_EXECUTOR_MEMORY"]
    paths = [environment.get("SPARK_EXTRA_CLASSPATH", ""), environment.get("SPARK_CONF_DIR", ""), f"{home}/jars/*"]
    chosen = [word for option, name in _TOLD.items() for word in (option, environment[name])]
    java = Path(environment["JAVA_HOME"]) / "bin" / "java" if environment.get("JAVA_HOME") else Path("java")
    sizes = [f"-Xms{memory}", f"-Xmx{memory}"]
    return [str(java), *options, *sizes, "-cp", ":".join(filter(None, paths)), _BACKEND, *chosen]


def _driver(rest: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    bind = environment.get("SPARK_DRIVER_BIND_ADDRESS", "0.0.0.0")  # noqa: S104  # inside its pod
    submit = str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit")
    return [submit, "--conf", f"spark.driver.bindAddress={bind}", "--deploy-mode", "client", *rest]


if __name__ == "__main__":
    main()
