"""Starts Spark's JVM so that other users of the machine see nothing of it, and drops one that has died."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from leftfold.errors import InfrastructureError

__all__ = ["forget_dead", "is_alive", "launch", "private_folder", "quiet_launch"]

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LONGEST_LOG = 1_000_000
_END_SECONDS = 20.0


def launch(properties: Mapping[str, str]) -> None:
    """Starts the JVM of this process unless there is one.

    Its properties are in a file for this user only, since pyspark would write them on command lines, which every user
    can read. Spark reads the file while it starts.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:  # noqa: SLF001  # no public way
        return
    before = os.environ.get(_ARGUMENTS)
    with tempfile.TemporaryDirectory(prefix="leftfold-spark-") as folder:  # 0700
        ours, java = dict(properties), Path(folder) / "java"
        if options := ours.get(_JAVA_OPTIONS):
            java.write_text("\n".join(map(_argument, shlex.split(options))), "utf-8")
            ours[_JAVA_OPTIONS] = f"@{java}"
        file, theirs, rest = Path(folder) / "properties", *_properties_file(before or "pyspark-shell")
        added = "".join(f"{_escaped(name, name=True)}={_escaped(value)}\n" for name, value in ours.items())
        file.write_text(f"{theirs}\n{added}", "utf-8")
        os.environ[_ARGUMENTS] = shlex.join(["--load-spark-defaults", "--properties-file", str(file), *rest])
        try:
            SparkContext._ensure_initialized()  # noqa: SLF001  # as SparkContext does it, which adds a command line
        finally:
            os.environ.pop(_ARGUMENTS)
            if before is not None:
                os.environ[_ARGUMENTS] = before


def is_alive() -> bool:
    """Whether there is a JVM, and its Spark context has not stopped by itself."""
    gateway, context = SparkContext._gateway, SparkContext._active_spark_context  # noqa: SLF001  # no public way
    try:
        if gateway is None or context is None:
            return gateway is not None and gateway.jvm.System.nanoTime() is not None
        return not context._jsc.sc().isStopped()  # noqa: SLF001
    except (Py4JError, OSError):
        return False


def forget_dead() -> None:
    """Drops a JVM that has died or whose context has stopped; pyspark itself would keep using it for ever."""
    gateway, context = SparkContext._gateway, SparkContext._active_spark_context  # noqa: SLF001
    if gateway is None or is_alive():
        return
    if context is not None:
        context._jsc = None  # noqa: SLF001  # only the Python side is left to stop
        context.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    if (process := getattr(gateway, "proc", None)) is not None:  # None where spark-submit started this process
        _end(process)
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a JVM by closing its input, after which it removes its own files; kills it after 20 s."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def quiet_launch(folder: Path) -> Iterator[None]:
    """Sends the standard error of Spark's JVM to a file instead of ours, which it would fill with warnings."""
    log = folder / "spark.log"
    ours = os.dup(2)
    try:
        out = _open(log)
        os.dup2(out, 2)
        os.close(out)
        yield
    except Exception as error:
        raise InfrastructureError(f"Spark did not start: {error}; its log is {log}") from error
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def private_folder(cache: Path) -> Path:
    """A directory for this user only; a new temporary one where the cache cannot be written."""
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = cache.stat()
        if os.access(cache, os.W_OK) and found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWOTH:
            return cache
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="leftfold-"))


def _open(log: Path) -> int:
    """Opens the log for appending; a log over 1 MB is first renamed to `.before`, replacing the last one."""
    if not log.is_symlink() and log.is_file() and log.stat().st_size > _LONGEST_LOG:
        log.replace(log.with_name(f"{log.name}.before"))
    return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _properties_file(arguments: str) -> tuple[str, list[str]]:
    """The text of the properties file in submit arguments, and the other arguments: Spark reads one file only."""
    words = shlex.split(arguments)
    if "--properties-file" not in words[:-1]:
        return "", words
    at = words.index("--properties-file")
    return Path(words[at + 1]).read_text("utf-8"), [*words[:at], *words[at + 2 :]]


def _escaped(text: str, *, name: bool = False) -> str:
    """A name or a value in the syntax of java.util.Properties."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    if name:
        return escaped.replace("=", "\\=").replace(":", "\\:").replace(" ", "\\ ")
    return f"\\{escaped}" if escaped.startswith((" ", "\t")) else escaped


def _argument(word: str) -> str:
    """An argument in the syntax of argument files of the `java` command."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
