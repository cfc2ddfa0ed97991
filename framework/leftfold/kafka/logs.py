"""librdkafka's log lines, without the flood that an unreachable broker makes."""

from __future__ import annotations

import logging
import time

__all__ = ["QuietLog"]

_log = logging.getLogger("leftfold.kafka")
_AGAIN = 30.0
_MOST = 100


class QuietLog(logging.Logger):
    """The logger of one client: hands each kind of line to `leftfold.kafka` once in 30 s, and one level down.

    librdkafka repairs its connections by itself, so what it calls an error is at most a warning to us: real errors
    are raised.
    """

    def __init__(self, client: str) -> None:
        super().__init__(client)
        self._seen: dict[str, float] = {}

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # as logging calls it
        """Always: what a client says also steers its owner, whom nobody means by `logging.disable`."""
        return True

    def handle(self, record: logging.LogRecord) -> None:
        """Passes the line on, unless one of its kind was passed on just now."""
        line = record.getMessage()
        kind, now = line.split(" ", 1)[0], time.monotonic()
        if now - self._seen.get(kind, -_AGAIN) < _AGAIN:
            return
        if len(self._seen) >= _MOST:
            self._seen.clear()
        self._seen[kind] = now
        _log.log(min(record.levelno, logging.WARNING), "%s: %s", self.name, line)
