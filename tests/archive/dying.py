"""Archivers that kill themselves, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.parquet.archiver import Archiver
from leftfold.parquet.filesystem import ArchiveFileSystem
from tests.archive.topics import Topic
from tests.servers import patient

__all__ = ["Die", "dying"]

Die = Callable[[Topic, str, int, str], bool]
"""Runs an archiver that kills itself before or after the nth step of a kind; whether it came so far."""


class Dying(ArchiveFileSystem):
    """A place whose nth step of a kind is the process's last, before it is done or after."""

    def __init__(self, uri: str, step: str, nth: int, when: str) -> None:
        super().__init__(uri)
        self._planned, self._left, self._when = step, nth, when

    def _passing(self, step: str, do: Callable[[], Any]) -> Any:
        if step == self._planned:
            self._left -= 1
            if not self._left and self._when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        done = do()
        if step == self._planned and not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def open_output(self, path: str) -> Any:
        return self._passing("open_output", lambda: super(Dying, self).open_output(path))

    def sync(self, path: str) -> None:
        self._passing("sync", lambda: super(Dying, self).sync(path))

    def put(self, path: str, data: bytes) -> None:
        self._passing("put", lambda: super(Dying, self).put(path, data))

    def remove(self, path: str) -> None:
        self._passing("remove", lambda: super(Dying, self).remove(path))


@contextmanager
def dying() -> Iterator[Die]:
    """A process that forks for each archiver, since to import what one needs takes seconds."""
    command, pipe = [sys.executable, "-m", "tests.archive.dying"], subprocess.PIPE
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdin=pipe, stdout=pipe, text=True) as process:

        def die(topic: Topic, step: str, nth: int, when: str) -> bool:
            assert process.stdout is not None
            given = {"kafka": topic.kafka.bootstrap_servers, "topic": topic.name, "folder": topic.folder}
            print(json.dumps({**given, "step": step, "nth": nth, "when": when}), file=process.stdin, flush=True)
            code = int(process.stdout.readline())
            assert code in (0, -signal.SIGKILL), "what it failed of is on standard error"
            return code != 0

        yield die


def archive(kafka: str, topic: str, folder: str, **death: Any) -> None:
    servers = patient(kafka)
    with ClusterAdmin(servers) as cluster:
        identity = cluster.identity(topic)
    Archiver(Dying(folder, **death), topic, identity, KafkaBulkLog(servers)).run()


def main() -> None:
    """Archives in a child for each line of JSON and prints its exit code; has no client of its own."""
    for line in sys.stdin:
        if not (child := os.fork()):
            archive(**json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
