"""Commands of `leftfold` on servers of a test, and `leftfold run` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leftfold.kafka.settings import KafkaSettings

__all__ = ["Shell"]

ROOT = Path(__file__).parents[2]
SECONDS = 240.0


class Shell:
    """Types commands for an App, each in a process of its own.

    Args:
        app: as `--app` names it. settings: Kafka. environment: of the commands, besides ours.
    """

    def __init__(self, app: str, settings: KafkaSettings, place: Path, environment: Mapping[str, str]) -> None:
        self._app, self._kafka, self.log = app, settings.bootstrap_servers, place / "log"
        path = os.pathsep.join([str(ROOT / "framework"), str(ROOT)])
        self.environment = {**os.environ, "PYTHONPATH": path, **environment}

    def tell(self, *words: str, as_json: bool = True) -> tuple[int, list[dict[str, Any]]]:
        """What a command says in JSON, and its exit code."""
        done = subprocess.run(
            self._command(*words, *(["--json"] if as_json else [])),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            cwd=self.log.parent,
        )
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()] if as_json else []

    def status(self, kind: str, name: str) -> dict[str, Any]:
        """What `leftfold status` says of a reaction, say."""
        return next(row for row in self.tell("status")[1] if (row["kind"], row["name"]) == (kind, name))

    def said(self) -> str:
        """What `leftfold run` has logged lately."""
        return self.log.read_text("utf-8")[-3000:]

    @contextmanager
    def running(self, *names: str) -> Iterator[subprocess.Popen[bytes]]:
        """`leftfold run` until the block ends; its log is gone on with."""
        with self.log.open("ab") as log:
            run = subprocess.Popen(
                self._command("run", *names, "--plain-logs"),
                cwd=self.log.parent,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield run
        finally:
            if run.poll() is None:
                run.send_signal(signal.SIGINT)
            run.wait(240.0)

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "leftfold.cli", *words, "--app", self._app, "--kafka", self._kafka]
