"""Finds out why no Kafka broker answers at an address, by connecting to it."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from typing import NamedTuple

from leftfold.kafka.errors import Unreachable
from leftfold.kafka.settings import KafkaSettings

__all__ = ["check_reachable", "unreachable_reason"]

_SECONDS, _PAUSE = 1.0, 0.05
_PORT = 9092
_CORRELATION = 0x6C666C66
_API_VERSIONS = struct.pack(">hhih", 18, 0, _CORRELATION, -1)
_LONGEST = 1 << 20
_ALERTS = ("SSLV3_ALERT", "TLSV1_", "TLSV13_")
"""Begin the names of OpenSSL for the alerts of a server."""


class _Probed(NamedTuple):
    """The result of a connection: `why` the server is not a broker, or ''.

    A `passing` reason may change a moment later.
    """

    why: str
    passing: bool = False


def unreachable_reason(settings: KafkaSettings, seconds: float = _SECONDS) -> str:
    """Why every broker address of the settings fails; '' if one of them is a broker."""
    found = [_probe(address, settings, seconds) for address in settings.bootstrap_servers.split(",")]
    return "" if any(not one.why for one in found) else "; ".join(dict.fromkeys(one.why for one in found))


def check_reachable(settings: KafkaSettings) -> None:
    """Waits until an address answers like a Kafka broker, which usually takes one round trip.

    Raises:
        Unreachable: for a second the host was unknown, nothing listened, or the server was not Kafka.
    """
    deadline = time.monotonic() + min(_SECONDS, settings.request_timeout)
    while True:
        found = [_probe(address, settings, _SECONDS) for address in settings.bootstrap_servers.split(",")]
        if any(not one.why or one.passing for one in found):
            return
        if time.monotonic() > deadline:
            why = "; ".join(dict.fromkeys(one.why for one in found))
            raise Unreachable(f"no broker at {settings.bootstrap_servers}: {why}; {settings.advice}")
        time.sleep(_PAUSE)


def _probe(address: str, settings: KafkaSettings, seconds: float) -> _Probed:
    host, port, given = _split(address)
    place = f"{host}:{port}" if given else f"{host}:{port} (no port is given)"
    try:
        with socket.create_connection((host, port), seconds) as connection:
            return _handshake(connection, host, place, settings.security_protocol)
    except socket.gaierror as error:
        return _Probed(f"there is no host {host!r} ({error.strerror})")
    except ConnectionRefusedError:
        return _Probed(f"nothing listens at {place}, connection refused")
    except TimeoutError:
        return _Probed(f"{place} does not answer; is a firewall before it?", passing=True)
    except (OSError, UnicodeError) as error:
        return _Probed(f"{place} cannot be reached ({error})")


def _handshake(connection: socket.socket, host: str, place: str, protocol: str) -> _Probed:
    if "SSL" in protocol.rsplit("_", maxsplit=1)[-1]:
        try:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.wrap_socket(connection, server_hostname=host or None).close()
        except (ssl.SSLError, ConnectionError) as error:
            # An alert is TLS: librdkafka reports what the server wants, such as a client certificate.
            if not str(getattr(error, "reason", "")).startswith(_ALERTS):
                return _Probed(f"{place} speaks no TLS, which security_protocol={protocol} wants")
        return _Probed("")
    connection.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
    try:
        head = _exactly(connection, 8)
    except TimeoutError:
        return _Probed(f"{place} takes connections but does not answer as Kafka does{_other(protocol)}", passing=True)
    except ConnectionError:
        head = b""
    if len(head) == 8:
        length, correlation = struct.unpack(">ii", head)
        if correlation == _CORRELATION and 0 < length < _LONGEST:
            return _Probed("")
    return _Probed(f"{place} does not answer as Kafka does{_other(protocol)}")


def _other(protocol: str) -> str:
    return f" (another server's port, or one for TLS, which security_protocol={protocol} does not use)"


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (part := connection.recv(count - len(found))):
        found += part
    return found


def _split(address: str) -> tuple[str, int, bool]:
    """Host, port, and whether the port is given; a protocol prefix, which librdkafka accepts, is removed."""
    place = address.strip().rpartition("://")[2]
    host, _, port = place.rpartition(":")
    if port.isdigit() and not host.endswith(":"):
        return host.strip("[]"), int(port), True
    return place.strip("[]"), _PORT, False
