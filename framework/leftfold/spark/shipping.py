"""Sends Python code to executors that do not have it: modules, zip files, and packages zipped on the way."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from pyspark import SparkContext, SparkFiles

from leftfold.errors import ConfigurationError

__all__ = ["packed", "ship"]


def ship(context: SparkContext, paths: Iterable[Path]) -> None:
    """Makes modules and packages importable in every executor of a session.

    Raises:
        ConfigurationError: a path is not there, or is nothing that Python imports from.
    """
    # Executors fetch from the file itself, whenever they begin: it lives as long as the session.
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
        # Directories too: without entries of their own, those that hold no __init__.py could not be imported from.
        for file in (path, *sorted(path.rglob("*"))):
            if "__pycache__" not in file.parts:
                archive.write(file, path.name / file.relative_to(path))
    return target
