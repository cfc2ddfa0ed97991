"""What the tests of the embedded servers share: directories, settings and looks at processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from leftfold.local import LocalSettings, down
from leftfold.local.jars import locked, spark_jars


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a data directory, with letters beyond ASCII, whose servers are stopped when the module ends."""
    directory = tmp_path_factory.mktemp("dätä 😀")
    yield directory
    down(directory)


@pytest.fixture(scope="module")
def settings(data: Path) -> LocalSettings:
    """Give the user's own settings with that data directory."""
    return LocalSettings(data=data)


@pytest.fixture(scope="session")
def spark_files() -> dict[str, Path]:
    """Give the real jars of the smaller configuration by their coordinates."""
    return {jar.coordinates: path for jar, path in zip(locked("spark"), spark_jars(), strict=True)}


def runs(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def script_environment() -> dict[str, str]:
    """Give the environment in which another Python finds this Leftfold."""
    import leftfold.local

    return {**os.environ, "PYTHONPATH": str(Path(leftfold.local.__file__).parents[2])}
