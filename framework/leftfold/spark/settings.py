"""Where Spark runs and with how much."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["SUBMITTED", "SparkSettings"]

SUBMITTED = "submitted"
"""The master where spark-submit has started this process and knows better."""


class SparkSettings(BaseSettings):
    """How a Spark session is made; environment variables begin with LEFTFOLD_SPARK_.

    Args:
        master: as for spark-submit; `local[*]` uses every core of this machine, `submitted` is the one that
            spark-submit was given, when it has started this process.
        memory: of the driver, which is also the executor under a local master.
        executor_memory: of each executor elsewhere; Spark's default, 1g, when it is not given.
        host: the address at which executors elsewhere reach this process; Spark's guess when it is not given.
        python: the interpreter of executors elsewhere; PYSPARK_PYTHON when it is not given, else the path of this one.
        py_files: modules, zip files and package directories that are sent to executors elsewhere.
        java_home: a Java of 17 or newer; what JAVA_HOME or PATH say when it is not given.
        jars: added to Spark's own; `leftfold.spark.events` needs those of the Kafka connector.
        checkpoints: where streams keep their sums: a directory that every driver of a view sees.
        properties: Spark's own, winning over ours; they are on no command line of this machine.
        cache_home: where caches of this user go, and Spark's log; `XDG_CACHE_HOME`.
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
    cache_home: Path = Field(default_factory=lambda: Path.home() / ".cache", validation_alias="XDG_CACHE_HOME")

    @property
    def cache(self) -> Path:
        """Leftfold's own directory among the user's caches."""
        return self.cache_home.expanduser() / "leftfold"
