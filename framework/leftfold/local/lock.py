"""The lock of the jars: their coordinates, digests and sizes; `python -m leftfold.local.jars --lock` writes it again."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Jar", "locked", "locked_digest", "write_lock", "read_jar"]

_LOCK = Path(__file__).with_name("jars.lock")
_HEADER = "# configuration coordinates sha256 bytes; written by: python -m leftfold.local.jars --lock\n"

# The broker's jars name the logging they use but not its binding, and Spark ships all but four of its connector's.
_ROOTS = {
    "kafka": ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
    "spark": (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ),
}
_TRANSITIVE = {"kafka": True, "spark": False}


@dataclass(frozen=True)
class Jar:
    """One jar of one configuration; `size` in bytes."""

    configuration: str
    coordinates: str
    sha256: str
    size: int

    @property
    def file(self) -> str:
        """The name of its file."""
        _, artifact, version = self.coordinates.split(":")
        return f"{artifact}-{version}.jar"


def locked(configuration: str) -> tuple[Jar, ...]:
    """Return the jars of a configuration (`kafka` or `spark`), in order."""
    jars = (_parse(line) for line in _LOCK.read_text("utf-8").splitlines() if line and not line.startswith("#"))
    return tuple(jar for jar in jars if jar.configuration == configuration)


def locked_digest(jars: Iterable[Jar]) -> str:
    """Return a short digest that changes whenever one of the jars does."""
    return hashlib.sha256("\n".join(map(_line, jars)).encode()).hexdigest()[:12]


def read_jar(configuration: str, coordinates: str, path: Path) -> Jar:
    """Describe the jar that lies at a path."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Jar(configuration, coordinates, digest, path.stat().st_size)


def write_lock() -> int:
    """Resolve the roots and write the lock."""
    # Imported here because the fetching of locked jars itself needs this module.
    from leftfold.local.ivy import resolve
    from leftfold.local.settings import LocalSettings

    lines = [_HEADER]
    settings = LocalSettings()
    for configuration, roots in _ROOTS.items():
        with tempfile.TemporaryDirectory() as directory:
            found = resolve(roots, Path(directory), settings, transitive=_TRANSITIVE[configuration])
            lines += [f"{_line(read_jar(configuration, name, path))}\n" for name, path in sorted(found.items())]
    _LOCK.write_text("".join(lines), "utf-8")
    sys.stdout.write(f"{_LOCK}: {len(lines) - 1} jars\n")
    return 0


def _parse(line: str) -> Jar:
    configuration, coordinates, sha256, size = line.split()
    return Jar(configuration, coordinates, sha256, int(size))


def _line(jar: Jar) -> str:
    return f"{jar.configuration} {jar.coordinates} {jar.sha256} {jar.size}"

