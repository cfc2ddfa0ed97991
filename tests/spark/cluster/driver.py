"""Holds a driver on a cluster: tells it what to do, waits for it, and says which of its tasks are doomed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from leftfold.kafka.settings import KafkaSettings
from leftfold.redis import RedisSettings
from tests.servers import secret_url
from tests.spark.cluster.doomed import Doom
from tests.spark.cluster.standalone import ROOT
from tests.waiting import wait_until

__all__ = ["Driver"]

WAIT_SECONDS = 240.0


class Driver:
    """The process behind `tests.spark.cluster.cluster_driver`; `doom` is what its tasks meet."""

    def __init__(self, master: str, kafka: KafkaSettings, folder: Path) -> None:
        self.doom, self._log = Doom(folder), folder / "log"
        command = [
            sys.executable,
            "-m",
            "tests.spark.cluster.cluster_driver",
            master,
            kafka.bootstrap_servers,
            str(folder),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, text=True
            )
        self._answers: SimpleQueue[str] = SimpleQueue()
        self._keeping: dict[str, Any] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(WAIT_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._listener.join()

    def begin(self, do: str, redis: RedisSettings, **told: Any) -> None:
        """Gives an order, which ends what goes on."""
        assert self._process.stdin is not None
        self._keeping = {"do": do, "redis": secret_url(redis), **told}
        self._process.stdin.write(json.dumps(self._keeping) + "\n")
        self._process.stdin.flush()

    def keep(self, do: str, redis: RedisSettings, **told: Any) -> None:
        """Begins something that goes on, unless that is what goes on."""
        if self._keeping != {"do": do, "redis": secret_url(redis), **told}:
            self.begin(do, redis, **told)
            assert self.answer() == {}

    def answer(self) -> Mapping[str, Any]:
        """Waits for the answer to an order."""
        self.wait_until(lambda: not self._answers.empty(), "an answer")
        told: dict[str, Any] = json.loads(self._answers.get())
        return told

    def wait_until(self, condition: Any, awaited: str) -> None:
        """Waits for a condition, as long as the driver lives."""
        wait_until(
            lambda: condition() or self._process.poll() is not None,
            lambda: f"{awaited}: {self._log.read_text()}",
            WAIT_SECONDS,
        )
        assert condition(), f"the driver ended before {awaited}: {self._log.read_text()}"

    def told(self, what: str) -> str:
        """Waits for what a task tells of itself."""
        path = self.doom.folder / what
        self.wait_until(path.exists, what)
        return path.read_text()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as told:
            for line in told:
                self._answers.put(line)
