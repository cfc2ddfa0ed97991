"""Commands about an App on a broker of a test, and `leftfold run` in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from leftfold.kafka.settings import KafkaSettings
from tests.cli import shell
from tests.cli.shell import ROOT, running

__all__ = ["Shell"]


class Shell(shell.Shell):
    """A directory to type in.

    Args:
        app: as `--app` names it. settings: Kafka. environment: what it says besides.
    """

    def __init__(self, app: str, settings: KafkaSettings, place: Path, environment: Mapping[str, str]) -> None:
        here = {
            "LEFTFOLD_APP": app,
            "LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
            "LEFTFOLD_KAFKA_REQUEST_TIMEOUT": str(settings.request_timeout),
        }
        super().__init__(place, {**here, "PYTHONPATH": f"{ROOT / 'framework'}{os.pathsep}{ROOT}", **environment})

    def tell(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        """The exit code of a command, and its rows."""
        reported = self(*words, "--json")
        return reported.code, reported.rows()

    def status(self, kind: str, name: str) -> dict[str, Any]:
        """What `leftfold status` says of a reaction, say."""
        return next(row for row in self.tell("status")[1] if (row["kind"], row["name"]) == (kind, name))

    def set(self, name: str, value: str) -> None:
        """Changes the environment of the commands that follow."""
        self._environment[name] = value

    def running(self, *names: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """`leftfold run` until the block ends."""
        return running(self, "run", *names, "--plain-logs")
