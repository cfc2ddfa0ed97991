"""Reference tables: files that queries may join with events."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from leftfold.errors import ConfigurationError
from leftfold.storage import Storage, is_record

__all__ = ["ReferenceFile"]

_FORMATS = ("parquet", "csv")


@dataclass(frozen=True)
class ReferenceFile:
    """A Parquet file, or a CSV file with a header line, whose columns are declared by a record.

    A query sees it as it is when the query begins; a refresh after the file has changed sees the change.

    Args:
        path: absolute, relative to the working directory, or `package:path` for a file inside an installed package.
        row: a frozen dataclass or model; its fields are the columns that queries see, with their types.

    Raises:
        ConfigurationError: the path has another ending, leads out of its package, or the row cannot be stored.
    """

    path: str
    row: type = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise ConfigurationError(f"reference file {self.path!r} must end in .{' or .'.join(_FORMATS)}")
        if ".." in PurePosixPath(self.path.rpartition(":")[2]).parts:
            raise ConfigurationError(f"reference file {self.path!r} must not contain '..'; say where it is")
        if not is_record(self.row):
            raise ConfigurationError(f"reference file {self.path!r}: row={self.row!r} must be a frozen dataclass")
        Storage(self.row, f"reference file {self.path!r}: row")

    @property
    def format(self) -> str:
        """`parquet` or `csv`, if it is a file that can be read."""
        return self.path.rpartition(".")[2].lower()

    def locate(self) -> Path:
        """Where the file is here.

        Raises:
            ConfigurationError: its package is not installed, or there is no such file.
        """
        package, _, inside = self.path.rpartition(":")
        found = _package(package, self.path) / inside if package else Path(inside)
        if not found.is_file():
            raise ConfigurationError(f"reference file {self.path!r} is not there: {found.absolute()} is no file")
        return found

    def fingerprint(self) -> str:
        """A hash of what is in the file now."""
        hashed = blake2b(digest_size=8)
        with self.locate().open("rb") as file:
            while block := file.read(1 << 20):
                hashed.update(block)
        return hashed.hexdigest()


def _package(name: str, path: str) -> Path:
    try:
        spec: Any = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"reference file {path!r}: package {name} is not installed; install it")
    return Path(next(iter(spec.submodule_search_locations)))
