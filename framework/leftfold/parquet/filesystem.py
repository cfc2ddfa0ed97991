"""Reads and writes the files of an archive, on any file system that pyarrow supports."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.safety import veiled

__all__ = ["ArchiveFileSystem"]


T = TypeVar("T")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ArchiveFileSystem:
    """The files of an archive under one directory, by relative paths; file system errors are InfrastructureErrors.

    Args:
        uri: a path, or a URI such as s3://bucket/folder; `name` is the same without secrets, for messages.

    Raises:
        ConfigurationError: pyarrow does not support such a file system.
    """

    def __init__(self, uri: str) -> None:
        self.uri, self.name = uri, veiled(uri)
        if "://" not in uri:
            self._files: FileSystem = LocalFileSystem()
            self._root = str(Path(uri).expanduser().absolute())
            return
        try:
            self._files, self._root = FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = veiled(str(error).replace(uri, self.name))
            raise ConfigurationError(
                f"the archive {self.name} is on no file system that pyarrow knows: {reason}"
            ) from error

    def names(self, folder: str) -> list[str]:
        """The sorted paths of all files below a folder; empty if there is no such folder."""
        selector = FileSelector(self._at(folder), allow_not_found=True, recursive=True)
        found = self.asked(folder, lambda: self._files.get_file_info(selector))
        cut = len(self._root.rstrip("/")) + 1
        return sorted(info.path[cut:] for info in found if info.type == FileType.File)

    def size(self, path: str) -> int | None:
        """The size of a file in bytes, None if it does not exist."""
        info = self.asked(path, lambda: self._files.get_file_info([self._at(path)]))[0]
        return None if info.type == FileType.NotFound else int(info.size or 0)

    def read(self, path: str) -> bytes | None:
        """Reads a small file; None if it does not exist."""

        def read() -> bytes | None:
            try:
                with self._files.open_input_stream(self._at(path)) as file:
                    return bytes(file.readall())
            except FileNotFoundError:
                return None

        return self.asked(path, read)

    def open_input(self, path: str) -> Any:
        """Opens a file for random reads."""
        return self.asked(path, lambda: self._files.open_input_file(self._at(path)))

    def open_output(self, path: str) -> Any:
        """Creates a file for writing; the caller must close and then `sync` it."""

        def begin() -> Any:
            self._files.create_dir(self._at(path).rpartition("/")[0], recursive=True)
            return self._files.open_output_stream(self._at(path))

        return self.asked(path, begin)

    def put(self, path: str, data: bytes) -> None:
        """Writes a small file atomically."""
        part = f"{path}.part"
        file = self.open_output(part)
        try:
            self.asked(path, lambda: file.write(data))
        except BaseException:
            with suppress(OSError, pa.ArrowException):
                file.close()
            raise
        self.asked(path, file.close)
        self.sync(part)
        self.asked(path, lambda: self._files.move(self._at(part), self._at(path)))
        self._sync_folder(path)

    def sync(self, path: str) -> None:
        """Waits until a written file is on the disk; object stores have stored it once it is closed."""
        if isinstance(self._files, LocalFileSystem):
            self.asked(path, lambda: _sync(self._at(path)))
            self._sync_folder(path)

    def remove(self, path: str) -> None:
        """Removes a file, if it exists."""

        def remove() -> None:
            try:
                self._files.delete_file(self._at(path))
            except FileNotFoundError:
                return

        self.asked(path, remove)

    def _sync_folder(self, path: str) -> None:
        """Syncs the folders of a file, up to the archive's root, so that its name is durable."""
        folder = self._at(path)
        while isinstance(self._files, LocalFileSystem) and len(folder) > len(self._root):
            folder = folder.rpartition("/")[0]
            _sync(folder)

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}".rstrip("/")

    def asked(self, path: str, ask: Callable[[], T]) -> T:
        """Calls the file system for a path, and translates its errors.

        Raises:
            InfrastructureError: the call failed.
        """
        try:
            return ask()
        except (OSError, pa.ArrowException) as error:
            what = f"the archive {self.name}: {path} cannot be used: {veiled(str(error))}"
            if getattr(error, "errno", None) in _FULL:
                what += "; make room and run it again: it continues after the last complete file"
            raise InfrastructureError(what) from error


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
