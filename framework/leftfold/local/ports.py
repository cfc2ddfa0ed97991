"""The ports of the embedded servers: chosen free at the first start and kept with the data."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.local.files import write_whole

__all__ = ["HOST", "Ports", "is_free"]

HOST = "127.0.0.1"

# Below the range from which systems take the ports of outgoing connections, so that none sits on a kept port.
_RANGE = range(20000, 32000)
_TRIES = 200


class Ports:
    """What port each server of a data directory has."""

    def __init__(self, data: Path) -> None:
        self._file = data / "ports.json"
        self._kept: dict[str, int] = {}
        if self._file.is_file():
            self._kept = {str(name): int(port) for name, port in json.loads(self._file.read_text("utf-8")).items()}

    def take(self, name: str, wanted: int | None = None) -> int:
        """Return the port of a server that is about to start: the one asked for, else the kept one, else a new one.

        Raises:
            ConfigurationError: the port is taken.
        """
        port = wanted or self._kept.get(name) or self._choose()
        if not is_free(port):
            mend = f"set LEFTFOLD_LOCAL_{name.upper()}_PORT" if wanted else f"remove {name!r} from {self._file}"
            raise ConfigurationError(
                f"port {port} of the embedded {name} is taken by another program; end that program, or {mend} "
                "for another port"
            )
        if self._kept.get(name) != port:
            self._kept[name] = port
            write_whole(self._file, json.dumps(self._kept, indent=2) + "\n")
        return port

    def _choose(self) -> int:
        for port in random.SystemRandom().sample(_RANGE, _TRIES):
            if port not in self._kept.values() and is_free(port):
                return port
        raise InfrastructureError(f"no free port found between {_RANGE.start} and {_RANGE.stop} on {HOST}")


def is_free(port: int) -> bool:
    """Say whether a server could listen on a port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
