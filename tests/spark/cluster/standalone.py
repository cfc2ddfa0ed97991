"""A standalone Spark cluster of this run's own: a master and workers as child processes on loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

from leftfold.local import java_home
from tests.waiting import WAIT_SECONDS, wait_until

__all__ = ["CODE", "ROOT", "SPARK_HOME", "StandaloneCluster", "standalone"]

SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[3]
CODE = (ROOT / "framework" / "leftfold", ROOT / "tests")
_QUIET = ("-Xmx256m", "-Dspark.master.rest.enabled=false", "-Dspark.ui.port=0")


class StandaloneCluster:
    """Its workers know nothing of our code: no PYTHONPATH, another directory; what they need is sent to them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._started = folder, 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        log = self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._master_log = log
        wait_until(lambda: "I have been elected leader" in log.read_text(), f"a master, see {log}")
        (self.url,) = re.findall(r"Starting Spark master at (spark://\S+)", log.read_text())

    def fill(self, count: int) -> None:
        """Starts workers until so many live."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < count:
            self._started += 1
            folder = self.folder / f"worker-{self._started}"
            options = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0")
            log = self._start(folder.name, "worker.Worker", *options, "--work-dir", str(folder), self.url)
            reported = "Successfully registered with master"
            wait_until(lambda: reported in log.read_text(), f"a worker, see {log}")  # noqa: B023  # at once
            self.workers.append(self._processes[-1])

    def worker_of(self, pid: int) -> subprocess.Popen[bytes]:
        """The worker whose executor runs a process."""
        above = {parent.pid for parent in psutil.Process(pid).parents()}
        (worker,) = [worker for worker in self.workers if worker.pid in above]
        return worker

    def applications(self) -> int:
        """How many applications have registered with the master."""
        return self._master_log.read_text().count("Registered app ")

    def end(self) -> None:
        """Ends every process that came of it."""
        found = [child for process in self._processes for child in _family(process.pid)]
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(found, timeout=WAIT_SECONDS)
        for one in self._processes:
            one.wait(WAIT_SECONDS)

    def _start(self, name: str, main: str, *arguments: str) -> Path:
        log = self.folder / f"{name}.log"
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYSPARK_PYTHON")}
        # What the scripts around these classes set: where Spark is, and the Scala it is made with.
        environment = {**kept, "SPARK_HOME": str(SPARK_HOME), "SPARK_SCALA_VERSION": "2.13"}
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        command = [str(java_home() / "bin" / "java"), *_QUIET, "-cp", f"{SPARK_HOME}/jars/*"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, f"org.apache.spark.deploy.{main}", *arguments],
                stdout=out, stderr=out, cwd=self.folder, env=environment,
            )  # fmt: skip
        self._processes.append(process)
        return log


def _family(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def standalone(folder: Path) -> Iterator[StandaloneCluster]:
    """A cluster without workers, which is stopped when the block ends."""
    cluster = StandaloneCluster(folder)
    try:
        yield cluster
    finally:
        cluster.end()
