"""A sink whose first writer of all stops before it writes and goes on when it is too late, as a zombie would."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from leftfold.errors import Fenced
from leftfold.model.rows import Fields
from leftfold.ports.bulk import BulkRow
from leftfold.ports.flush import Generation
from leftfold.redis import RedisBulkSink, RedisSettings

__all__ = ["LateSink", "UncheckedLateSink"]

PATIENCE = 240.0


class LateSink(RedisBulkSink):
    """Tells in a folder: `stopped` holds its process id; once `go` is there it writes, and `outcome` says what came."""

    def __init__(self, settings: RedisSettings, folder: Path) -> None:
        super().__init__(settings)
        self._folder = folder

    def write(
        self, generation: Generation, bucket: int, columns: Fields, indexes: tuple[str, ...], rows: Iterable[BulkRow]
    ) -> int:
        """Writes, the first of all tasks late."""
        whole = list(rows)
        if not whole or not self._is_first():
            return super().write(generation, bucket, columns, indexes, whole)
        deadline = time.monotonic() + PATIENCE
        while not (self._folder / "go").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody let {os.getpid()} go on")
            time.sleep(0.01)
        try:
            count = super().write(generation, bucket, columns, indexes, whole)
        except Fenced:
            self._tell("outcome", "fenced")
            raise
        self._tell("outcome", "written")
        return count

    def _is_first(self) -> bool:
        try:
            (self._folder / "first").touch(exist_ok=False)
        except FileExistsError:
            return False
        # A machine that is cut off hears neither of its executor's end nor of the rebuild's.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._tell("stopped", str(os.getpid()))
        return True

    def _tell(self, what: str, text: str) -> None:
        new = self._folder / f"{what}.new"
        new.write_text(text)
        new.rename(self._folder / what)


class UncheckedLateSink(LateSink):
    """Does not look at the phase."""

    def may_write(self, phase: bytes | None) -> bool:
        """Writes into whatever is there."""
        return True
