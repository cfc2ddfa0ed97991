"""The certificates that this Python trusts, as a file that a JVM can be told to trust.

A Java runtime from a wheel knows nothing of the certificate authorities that the system's owner has added, such as that
of a proxy; Python's OpenSSL does. The file is in Sun's JKS format, version 2: big-endian, with lengths before strings.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from pathlib import Path

__all__ = ["trust_flags", "write_trust_store"]

_MAGIC, _VERSION, _CERTIFICATE = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # noqa: S105  # Java's own default; the digest made with it only detects damage
_SALT = b"Mighty Aphrodite"


def trust_flags(store: Path) -> tuple[str, ...]:
    """Write the store and return the flags that make a JVM use it; none if this Python trusts nobody either."""
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return ()
    write_trust_store(store, certificates)
    return f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"


def write_trust_store(store: Path, certificates: list[bytes]) -> None:
    """Write certificates, each in DER form."""
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _CERTIFICATE) + _text(f"certificate-{number}") + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    seal = hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body, usedforsecurity=False).digest()
    store.write_bytes(body + seal)


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
