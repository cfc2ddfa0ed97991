"""Spark sessions and their settings: quiet, on loopback, with this Python and the user's code on executors."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import py4j
from py4j.protocol import Py4JError
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict
from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from leftfold.errors import ConfigurationError
from leftfold.spark.core.jvm import forget_dead, launch, private_folder, quiet_launch

__all__ = ["SparkSettings", "open_session", "packed", "spark_session"]


SUBMITTED = "submitted"
"""The master setting for a process that spark-submit started: its master is kept."""


class SparkSettings(BaseSettings):
    """Settings of a Spark session; environment variables begin with LEFTFOLD_SPARK_.

    Args:
        master: as for spark-submit; `local[*]` uses every core of this machine, `submitted` keeps the master of
            spark-submit, when that started this process.
        memory: of the driver, which is also the executor under a local master.
        executor_memory: of each executor on other machines; Spark's default, 1g, when it is not given.
        host: the address at which executors on other machines reach this process; Spark's guess when not given.
        python: the interpreter of executors on other machines; PYSPARK_PYTHON when not given, else this one's path.
        py_files: modules, zip files and package directories that are sent to executors on other machines.
        java_home: a Java of 17 or newer; found by JAVA_HOME or PATH when it is not given.
        jars: added to Spark's own; `leftfold.spark.events` needs those of the Kafka connector.
        checkpoints: where streams keep their aggregates: a directory that every driver of a view can read and write.
        properties: Spark properties, which override Leftfold's; they are on no command line of this machine.
        cache_home: where caches of this user are, and Spark's log; `XDG_CACHE_HOME`.
    """

    model_config = SettingsConfigDict(
        env_prefix="LEFTFOLD_SPARK_",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    master: str = "local[*]"
    memory: str = "1g"
    executor_memory: str | None = None
    host: str | None = None
    python: str | None = None
    py_files: tuple[Path, ...] = ()
    java_home: Path | None = None
    jars: tuple[Path, ...] = ()
    checkpoints: Path | None = None
    properties: dict[str, str] = Field(default_factory=dict, repr=False)
    cache_home: Path = Field(default=Path("~/.cache"), validation_alias="XDG_CACHE_HOME")

    @property
    def cache(self) -> Path:
        """Leftfold's directory in the user's cache directory.

        Raises:
            ConfigurationError: the environment names no home directory, and this user has none.
        """
        try:
            return self.cache_home.expanduser() / "leftfold"
        except RuntimeError as error:
            raise ConfigurationError(
                "this user has no home directory for caches; set HOME or XDG_CACHE_HOME"
            ) from error


def ship(context: SparkContext, paths: Iterable[Path]) -> None:
    """Makes modules and packages importable in every executor of a session.

    Raises:
        ConfigurationError: a path does not exist, or Python cannot import from it.
    """
    # Executors fetch the file itself whenever they start: it must live as long as the session.
    folder = Path(SparkFiles.getRootDirectory()) / "packed"
    for path in paths:
        folder.mkdir(exist_ok=True)
        context.addPyFile(str(packed(path, folder)))


def packed(path: Path, folder: Path) -> Path:
    """The file to send for a path: a package becomes a zip in the folder, with its own name inside.

    Raises:
        ConfigurationError: as for `ship`.
    """
    path = path.resolve()
    if path.is_file() and path.suffix in (".py", ".zip", ".egg"):
        return path
    if not (path.is_dir() and path.name.isidentifier()):
        raise ConfigurationError(
            f"{path} is no package directory, .py or .zip; name the directory that holds the package's modules, "
            f"such as --py-files shop"
        )
    target = folder / f"{path.name}.zip"
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        # Directories too: without entries of their own, those without an __init__.py could not be imported from.
        for file in (path, *sorted(path.rglob("*"))):
            if "__pycache__" not in file.parts:
                archive.write(file, path.name / file.relative_to(path))
    return target


_ERROR_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""The loggers by which pyspark writes every query error to standard error, with Java's stack; it is raised as well."""

_PY4J = Path(py4j.__file__).parent
_PY4J_LOGGERS = ("", "py4j.clientserver", "py4j.java_gateway")


def open_session(settings: SparkSettings) -> SparkSession:
    """The session of this process; made when there is none or Spark has died since, which takes seconds."""
    forget_dead()
    local = settings.master.startswith("local")
    if settings.java_home is not None:
        os.environ["JAVA_HOME"] = str(settings.java_home)
    # Python may be at another path on other machines and in other images.
    elsewhere = settings.python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    os.environ["PYSPARK_PYTHON"] = sys.executable if local else elsewhere
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path or str(Path.cwd()) for path in sys.path))
    if local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    folder = private_folder(settings.cache)
    properties = {**_ours(settings, folder, local=local), **settings.properties}
    with _uninterrupted(), quiet_launch(folder):
        if settings.master != SUBMITTED:
            launch({**properties, "spark.master": settings.master, "spark.app.name": "leftfold"})
        session = _builder(settings, properties).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    for name in _ERROR_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    for name in _PY4J_LOGGERS:
        logging.getLogger(name).addFilter(_not_of_py4j)
    _silence_accumulators(session.sparkContext)
    if not local:
        ship(session.sparkContext, settings.py_files)
    return session


def _silence_accumulators(context: SparkContext) -> None:
    """Suppresses the stack trace that pyspark's listener for accumulators prints when Spark dies."""
    server: Any = context._accumulatorServer  # noqa: SLF001  # socketserver reports errors by a method of the instance
    if "handle_error" in vars(server):
        return
    report = server.handle_error

    def handle_error(request: object, address: object) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            report(request, address)

    server.handle_error = handle_error


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Filters out what py4j logs, also to the root logger: the stacks of a call that Ctrl-C interrupted."""
    return Path(record.pathname).parent != _PY4J


def _builder(settings: SparkSettings, properties: Mapping[str, str]) -> SparkSession.Builder:
    if settings.master == SUBMITTED:
        # What was given to spark-submit wins over our defaults, but not over the user's settings.
        given = {name for name, _ in SparkConf().getAll()} - settings.properties.keys()
        properties = {name: value for name, value in properties.items() if name not in given}
        builder = SparkSession.builder
    else:
        builder = SparkSession.builder.master(settings.master).appName("leftfold")
    for name, value in properties.items():
        builder = builder.config(name, value)
    return builder


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defers Ctrl-C until Spark has started, and says so: the JVM of a half-started Spark would outlive us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []
    stderr = os.dup(2)  # descriptor 2 is Spark's log file meanwhile

    def interrupted(number: int, frame: object) -> None:
        if not interrupts:
            os.write(stderr, b"interrupted; Spark is starting and can be stopped only then\n")
        interrupts.append(number)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(stderr)
    if interrupts:
        raise KeyboardInterrupt


@contextmanager
def spark_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """A session that is stopped at the end of the block, unless there was one before.

    When Spark dies within the block, `open_session` makes another one, which is stopped instead.
    """
    forget_dead()
    mine = SparkContext._active_spark_context is None  # noqa: SLF001  # of any thread; no public way
    session = open_session(settings)
    try:
        yield session
    finally:
        if mine:
            _stop()


def _stop() -> None:
    """Stops the current session, unless Spark has died."""
    forget_dead()
    session = SparkSession._instantiatedSession  # noqa: SLF001  # of any thread; no public way
    if session is not None:
        try:
            session.stop()
        except (Py4JError, OSError):
            forget_dead()


def _ours(settings: SparkSettings, folder: Path, *, local: bool) -> dict[str, str]:
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": settings.memory,
        # Out of memory, Spark may lose the thread that a job waits for, and the job would wait for ever.
        "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError -XX:+DisplayVMOutputToStderr",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
        "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),  # never written to: nothing makes tables
        # A Kafka message is a dozen small allocations, and glibc caches only 7 of a size per thread by default.
        "spark.executorEnv.GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000",
    }
    if settings.jars:
        ours["spark.jars"] = ",".join(map(str, settings.jars))
    if local:
        # Spark's default is 200, each a task, whatever the size of the data and of the machine.
        ours["spark.sql.shuffle.partitions"] = str(4 * (os.cpu_count() or 1))
    return ours | (_LOOPBACK if local else _elsewhere(settings))


_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def _elsewhere(settings: SparkSettings) -> dict[str, str]:
    """Properties for executors on other machines: a way back to this process, and memory of their own."""
    found: dict[str, str] = {}
    if settings.host is not None:
        # The address may be one that this machine does not have itself, such as a service in front of a pod.
        found |= {"spark.driver.host": settings.host, "spark.driver.bindAddress": "0.0.0.0"}  # noqa: S104
    if settings.executor_memory is not None:
        found["spark.executor.memory"] = settings.executor_memory
    return found
