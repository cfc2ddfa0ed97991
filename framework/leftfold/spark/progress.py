"""How far running tasks are: datagrams to the driver, since Spark tells of a task only when it has ended."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

__all__ = ["Address", "Teller", "listening"]

Address = tuple[str, int]
_EVERY = 0.2
"""Seconds."""


@contextmanager
def listening(spark: SparkSession, tell: Callable[[int], None]) -> Iterator[Address]:
    """Hands on the counts that arrive while the block runs; one that is lost is only missing from a progress bar."""
    host = spark.conf.get("spark.driver.host", None) or "127.0.0.1"
    bind = spark.conf.get("spark.driver.bindAddress", None) or ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((bind, 0))
        port = receiver.getsockname()[1]
        here = ("127.0.0.1" if bind in ("", "0.0.0.0") else bind, port)  # noqa: S104  # compared, not bound

        def listen() -> None:
            while told := receiver.recv(32):
                if told.isdigit():
                    tell(int(told))

        thread = threading.Thread(target=listen, name="progress", daemon=True)
        thread.start()
        try:
            yield host, port
        finally:
            # An empty datagram to itself ends the thread, behind everything that has arrived.
            while thread.is_alive():
                receiver.sendto(b"", here)
                thread.join(_EVERY)


class Teller:
    """Sends counts to the driver, five times a second at most, and what is left when it is closed."""

    def __init__(self, address: Address) -> None:
        self._address, self._count, self._told = address, 0, time.monotonic()
        self._sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def __call__(self, more: int) -> None:
        """Counts more events."""
        self._count += more
        if time.monotonic() - self._told >= _EVERY:
            self._send()

    def close(self) -> None:
        """Sends the rest."""
        self._send()
        self._sender.close()

    def _send(self) -> None:
        with suppress(OSError):  # a task does not fail because nobody can watch it
            self._sender.sendto(b"%d" % self._count, self._address)
        self._count, self._told = 0, time.monotonic()
