"""An archiver that kills itself: `python -m tests.archive.dying '{"step": "put", "nth": 2, "when": "before", ...}'`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.parquet.archiver import Archiver
from leftfold.parquet.filesystem import ArchiveFileSystem
from tests.servers import patient


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


def main(given: dict[str, Any]) -> None:
    kafka = patient(given["kafka"])
    place = Dying(given["folder"], given["step"], given["nth"], given["when"])
    with ClusterAdmin(kafka) as cluster:
        identity = cluster.identity(given["topic"])
    Archiver(place, given["topic"], identity, KafkaBulkLog(kafka)).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
