"""Jars of the broker and of Spark's Kafka connector: fetched with Ivy, checked against the lock, cached per user."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.local.files import Progress, StderrProgress, held, wheel_path
from leftfold.local.java import java_home, trust_flags
from leftfold.local.settings import LocalSettings
from leftfold.version import install_command

__all__ = ["jars", "locked", "read_jar", "spark_jars"]


_SEPARATOR = "--"

# Without poms a locked list needs one request per jar instead of three; `ibiblio` is a repository that Ivy knows.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="default"/>
  <timeout-constraints>
    <timeout-constraint name="patient" connectionTimeout="10000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="default" m2compatible="true" usepoms="{poms}" timeoutConstraint="patient"/>
  </resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0">
  <info organisation="leftfold" module="jars"/>
  <configurations><conf name="jars"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_UNTRUSTED = "unable to find valid certification path"
_ARRIVED = re.compile(r"\[SUCCESSFUL ].*!.*\.jar")
_REASON = re.compile(r"Server access error.*|\(sha1 or md5\).*|invalid sha1.*|.*[:;].*: not found|.*Exception.*")


def fetch(coordinates: Iterable[str], directory: Path, settings: LocalSettings, step: Callable[[int], None]) -> None:
    """Fetch exactly these jars into `directory`/jars; an interrupted fetch into it is continued.

    Args:
        step: called with the number of jars that have arrived so far.

    Raises:
        InfrastructureError: a jar cannot be fetched; the message says why and what to try.
        ConfigurationError: no Java, no pyspark, or the Ivy settings file is missing.
    """
    pattern = "[artifact]-[revision].[ext]"
    _run(_command(coordinates, directory, settings, transitive=False, pattern=pattern), directory, step)


def resolve(roots: Iterable[str], directory: Path, settings: LocalSettings, *, transitive: bool) -> dict[str, Path]:
    """Fetch these jars and, if asked, all their dependencies; return their coordinates and files."""
    pattern = _SEPARATOR.join(("[organisation]", "[artifact]", "[revision].[ext]"))
    _run(_command(roots, directory, settings, transitive=transitive, pattern=pattern), directory, lambda _: None)
    files = sorted((directory / "jars").glob("*.jar"))
    return {":".join(file.stem.split(_SEPARATOR)): file for file in files}


def _command(
    coordinates: Iterable[str], directory: Path, settings: LocalSettings, *, transitive: bool, pattern: str
) -> list[str]:
    module, rules = directory / "ivy.xml", directory / "ivysettings.xml"
    module.write_text(_module(coordinates, transitive=transitive), "utf-8")
    rules.write_text(_SETTINGS.format(poms="true" if transitive else "false"), "utf-8")
    return [
        *(str(java_home(settings) / "bin" / "java"), "-jar", str(_ivy())),
        *("-ivy", str(module), "-settings", str(_mirror(settings) or rules), "-cache", str(directory / "cache")),
        *("-confs", "jars", "-retrieve", f"{directory}/jars/{pattern}"),
    ]


def _run(command: list[str], directory: Path, step: Callable[[int], None]) -> None:
    done, output = _attempt(command, step)
    if not done and any(_UNTRUSTED in line for line in output):
        java, *rest = command
        done, output = _attempt([java, *trust_flags(directory / "trust.jks"), *rest], step)
    if not done:
        raise InfrastructureError(_failure(output))


def _attempt(command: list[str], step: Callable[[int], None]) -> tuple[bool, list[str]]:
    output, arrived = [], 0
    step(arrived)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        for line in ivy.stdout or ():
            output.append(line.strip())
            if _ARRIVED.search(line):
                arrived += 1
                step(arrived)
    return ivy.returncode == 0, output


def _module(coordinates: Iterable[str], *, transitive: bool) -> str:
    line = "    <dependency org={} name={} rev={} conf='jars->default' transitive='{}'/>"
    flag = "true" if transitive else "false"
    lines = (line.format(*map(quoteattr, name.split(":")), flag) for name in coordinates)
    return _MODULE.format(dependencies="\n".join(lines))


def _failure(output: list[str]) -> str:
    reasons = list(dict.fromkeys(line for line in output if _REASON.fullmatch(line)))
    return (
        f"Ivy could not fetch the jars: {'; '.join(reasons[-2:]) or ' '.join(output[-3:])}. Check the network, or name "
        "a mirror with LEFTFOLD_IVY_SETTINGS=<Ivy settings file>, or fetch the jars where there is a network with "
        "`python -m leftfold.local.jars DIRECTORY` and set LEFTFOLD_JARS=DIRECTORY here"
    )


def _ivy() -> Path:
    jars = wheel_path("pyspark", "jars")
    found = sorted(jars.glob("ivy-*.jar")) if jars is not None else []
    if not found:
        raise ConfigurationError(
            f"pyspark, whose Ivy fetches the jars, is not installed; install it: {install_command('spark')}"
        )
    return found[-1]


def _mirror(settings: LocalSettings) -> Path | None:
    if settings.ivy_settings is not None and not settings.ivy_settings.is_file():
        raise ConfigurationError(
            f"LEFTFOLD_IVY_SETTINGS names {settings.ivy_settings}, which is no file; correct or unset it"
        )
    return settings.ivy_settings


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
    """One jar of a configuration in the lock; `size` in bytes."""

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
    """Return the locked jars of a configuration (`kafka` or `spark`), in order."""
    lines = (line.split() for line in _LOCK.read_text("utf-8").splitlines() if line and not line.startswith("#"))
    return tuple(Jar(of, name, sha256, int(size)) for of, name, sha256, size in lines if of == configuration)


def locked_digest(jars: Iterable[Jar]) -> str:
    """Return a short digest that changes whenever one of the jars does."""
    return hashlib.sha256("\n".join(map(_line, jars)).encode()).hexdigest()[:12]


def read_jar(configuration: str, coordinates: str, path: Path) -> Jar:
    """Return the lock entry of the jar at a path."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Jar(configuration, coordinates, digest, path.stat().st_size)


def write_lock() -> int:
    """Resolve the roots and write the lock."""
    lines, settings = [_HEADER], LocalSettings()
    for configuration, roots in _ROOTS.items():
        with tempfile.TemporaryDirectory() as directory:
            found = resolve(roots, Path(directory), settings, transitive=_TRANSITIVE[configuration])
            lines += [f"{_line(read_jar(configuration, name, path))}\n" for name, path in sorted(found.items())]
    _LOCK.write_text("".join(lines), "utf-8")
    sys.stdout.write(f"{_LOCK}: {len(lines) - 1} jars\n")
    return 0


def _line(jar: Jar) -> str:
    return f"{jar.configuration} {jar.coordinates} {jar.sha256} {jar.size}"


_FETCH_SECONDS = 900.0
_MAIN = {"kafka": ("Kafka", ":kafka_2.13:"), "spark": ("Spark's Kafka connector", ":spark-sql-kafka-0-10_2.13:")}


def spark_jars(settings: LocalSettings | None = None, *, progress: Progress | None = None) -> tuple[Path, ...]:
    """Return the jars for `spark.jars` with which Spark reads Kafka, fetched when they are missing."""
    return jars("spark", settings or LocalSettings(), progress or StderrProgress())


def jars(configuration: str, settings: LocalSettings, progress: Progress) -> tuple[Path, ...]:
    """Return the verified jars of a configuration: the user's own directory, else the cache, else the network.

    Raises:
        ConfigurationError: a jar is missing from the user's directory, or Java or pyspark is not installed.
        InfrastructureError: a jar is not what the lock says, or cannot be fetched.
    """
    wanted = locked(configuration)
    if settings.jars is not None:
        return verify(settings.jars, wanted)
    cached = settings.cache / "jars" / f"{configuration}-{locked_digest(wanted)}"
    if not _is_complete(cached, wanted):
        _fetch_into(cached, wanted, settings, progress)
    return verify(cached, wanted)


def verify(directory: Path, wanted: tuple[Jar, ...]) -> tuple[Path, ...]:
    """Return the files of the wanted jars; raise for the first that is missing or differs from the lock."""
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
    """Fetch all jars now instead of at the first use, and copy them into a directory if one is named."""
    if len(sys.argv) > 2 or sys.argv[1:2] == ["--help"]:
        sys.stderr.write("usage: python -m leftfold.local.jars [DIRECTORY]\n")
        return 2
    paths = (*jars("kafka", LocalSettings(), StderrProgress()), *spark_jars())
    if sys.argv[1:]:
        target = Path(sys.argv[1])
        target.mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copy(path, target)
    return 0


def _fetch_into(cached: Path, wanted: tuple[Jar, ...], settings: LocalSettings, progress: Progress) -> None:
    cached.parent.mkdir(parents=True, exist_ok=True)
    lock = cached.with_suffix(".lock")
    busy = f"another process has been fetching jars for {_FETCH_SECONDS:.0f} s; if none is, delete {lock}"
    with held(lock, seconds=_FETCH_SECONDS, busy=busy):
        if _is_complete(cached, wanted):
            return
        # Not a temporary directory: the next fetch continues with the jars of an interrupted one.
        work = cached.with_suffix(".fetch")
        work.mkdir(exist_ok=True)
        title, names = _title(wanted), [jar.coordinates for jar in wanted]
        fetch(names, work, settings, step=lambda arrived: progress(f"fetching {title} ... {arrived}/{len(names)}"))
        _publish(work, cached, wanted)
        progress(f"fetched {title}")


def _publish(work: Path, cached: Path, wanted: tuple[Jar, ...]) -> None:
    try:
        verify(work / "jars", wanted)
        shutil.rmtree(cached, ignore_errors=True)
        (work / "jars").replace(cached)
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
    sys.exit(write_lock() if sys.argv[1:] == ["--lock"] else main())
