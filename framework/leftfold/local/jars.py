"""The jars of the broker and of Spark's Kafka connector, checked against the lock; kept once per user."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.local.flock import held
from leftfold.local.ivy import fetch
from leftfold.local.lock import Jar, locked, locked_digest, read_jar
from leftfold.local.progress import Progress, StderrProgress
from leftfold.local.settings import LocalSettings

__all__ = ["jars", "kafka_jars", "main", "spark_jars", "verify"]

_FETCH_SECONDS = 900.0
_MAIN = {
    "kafka": ("Kafka", ":kafka_2.13:"),
    "spark": ("Spark's Kafka connector", ":spark-sql-kafka-0-10_2.13:"),
}


def kafka_jars(settings: LocalSettings | None = None, *, progress: Progress | None = None) -> tuple[Path, ...]:
    """Return the class path of the broker, fetched when it is not there yet."""
    return jars("kafka", settings or LocalSettings(), progress or StderrProgress())


def spark_jars(settings: LocalSettings | None = None, *, progress: Progress | None = None) -> tuple[Path, ...]:
    """Return what `spark.jars` must list for Spark to read Kafka, fetched when it is not there yet."""
    return jars("spark", settings or LocalSettings(), progress or StderrProgress())


def jars(configuration: str, settings: LocalSettings, progress: Progress) -> tuple[Path, ...]:
    """Return the verified jars of a configuration: the user's own directory, else the cache, else the network.

    Raises:
        ConfigurationError: a jar is missing from the user's directory, or Java or pyspark is not installed.
        InfrastructureError: a jar is not what the lock says, or is not to be had.
    """
    wanted = locked(configuration)
    if settings.jars is not None:
        return verify(settings.jars, wanted)
    kept = settings.cache / "jars" / f"{configuration}-{locked_digest(wanted)}"
    if not _is_complete(kept, wanted):
        _fetch_into(kept, wanted, settings, progress)
    return verify(kept, wanted)


def verify(directory: Path, wanted: tuple[Jar, ...]) -> tuple[Path, ...]:
    """Return the files of the wanted jars, or raise naming the first that is missing or not what the lock says."""
    paths = tuple(directory / jar.file for jar in wanted)
    for jar, path in zip(wanted, paths, strict=True):
        if not path.is_file():
            raise ConfigurationError(
                f"{directory} lacks {jar.file} ({jar.coordinates}); fill it where there is a network: "
                "python -m leftfold.local.jars DIRECTORY"
            )
        found = read_jar(jar.configuration, jar.coordinates, path)
        if found.sha256 != jar.sha256:
            raise InfrastructureError(
                f"{path} is not the jar that Leftfold was tested with: sha256 is {found.sha256}, the lock says "
                f"{jar.sha256}; delete that file and run this again"
            )
    return paths


def main() -> int:
    """Fetch all jars now rather than at the first use, and copy them into a directory if one is named."""
    if len(sys.argv) > 2 or sys.argv[1:2] == ["--help"]:
        sys.stderr.write("usage: python -m leftfold.local.jars [DIRECTORY]\n")
        return 2
    paths = (*kafka_jars(), *spark_jars())
    if sys.argv[1:]:
        target = Path(sys.argv[1])
        target.mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copy(path, target)
    return 0


def _fetch_into(kept: Path, wanted: tuple[Jar, ...], settings: LocalSettings, progress: Progress) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    lock = kept.with_suffix(".lock")
    busy = f"another process has been fetching jars for {_FETCH_SECONDS:.0f} s; if none is, delete {lock}"
    with held(lock, seconds=_FETCH_SECONDS, busy=busy):
        if _is_complete(kept, wanted):
            return
        # Not a temporary directory: what a broken-off fetch has brought is there for the next one.
        work = kept.with_suffix(".fetch")
        work.mkdir(exist_ok=True)
        title, count = _title(wanted), len(wanted)
        names = [jar.coordinates for jar in wanted]
        fetch(names, work, settings, step=lambda arrived: progress(f"fetching {title} ... {arrived}/{count}"))
        _publish(work, kept, wanted)
        progress(f"fetched {title}")


def _publish(work: Path, kept: Path, wanted: tuple[Jar, ...]) -> None:
    try:
        verify(work / "jars", wanted)
        shutil.rmtree(kept, ignore_errors=True)
        (work / "jars").replace(kept)
    finally:
        shutil.rmtree(work)


def _is_complete(directory: Path, wanted: tuple[Jar, ...]) -> bool:
    return all((directory / jar.file).is_file() for jar in wanted)


def _title(wanted: tuple[Jar, ...]) -> str:
    size = sum(jar.size for jar in wanted) / 1e6
    name, artifact = _MAIN[wanted[0].configuration]
    version = next(jar.coordinates.split(":")[2] for jar in wanted if artifact in jar.coordinates)
    return f"{len(wanted)} jars for {name} {version} (once, {size:.0f} MB)"


if __name__ == "__main__":
    from leftfold.local.lock import write_lock

    sys.exit(write_lock() if sys.argv[1:] == ["--lock"] else main())
