"""Ports for servers of tests: free, and of this process alone while several test at once."""

from __future__ import annotations

import os
import random
import socket

from leftfold.http.access import REFUSED_PORTS

__all__ = ["BUS", "free_port", "listens", "own_range"]

BUS = 10_000
"""How much higher the second port of a cluster's node is; free as well."""
# Below those of `leftfold up` (20,000 on) and those that systems give to outgoing connections (32,768 on).
_PORTS, _PROCESSES = range(4_000, 9_600), 7
_given: set[int] = set()


def own_range(ports: range) -> range:
    """The part of a range that this one of the processes has that test at once."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES
    each = len(ports) // _PROCESSES
    return ports[number * each : (number + 1) * each]


def free_port() -> int:
    """A port of loopback without a listener, given to one caller only; browsers open pages at it."""
    own = own_range(_PORTS)
    while True:
        port = random.choice(own)
        if port not in _given | REFUSED_PORTS and _is_free(port) and _is_free(port + BUS):
            _given.add(port)
            return port


def listens(port: int) -> bool:
    """Whether something listens at a port of this machine."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60.0):
            return True
    except OSError:
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
