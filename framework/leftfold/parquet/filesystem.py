"""The directory of an archive on any file system that pyarrow supports."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
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
    """Files under one directory, named by paths relative to it. Errors of the file system are InfrastructureErrors.

    Args:
        uri: a path, or a URI such as s3://bucket/folder; messages call it by its `name`, which holds no secret.

    Raises:
        ConfigurationError: pyarrow does not know such a file system.
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
            told = veiled(str(error).replace(uri, self.name))
            raise ConfigurationError(
                f"the archive {self.name} is on no file system that pyarrow knows: {told}"
            ) from error

    def names(self, folder: str) -> list[str]:
        """The paths of all files below a folder, in order; none when there is no such folder."""
        selector = FileSelector(self._at(folder), allow_not_found=True, recursive=True)
        found = self.asked(folder, lambda: self._files.get_file_info(selector))
        cut = len(self._root.rstrip("/")) + 1
        return sorted(info.path[cut:] for info in found if info.type == FileType.File)

    def size(self, path: str) -> int | None:
        """How many bytes a file has, None when it is not there."""
        info = self.asked(path, lambda: self._files.get_file_info([self._at(path)]))[0]
        return None if info.type == FileType.NotFound else int(info.size or 0)

    def read(self, path: str) -> bytes | None:
        """A small file, None when it is not there."""

        def read() -> bytes | None:
            try:
                with self._files.open_input_stream(self._at(path)) as file:
                    return bytes(file.readall())
            except FileNotFoundError:
                return None

        return self.asked(path, read)

    def open_input(self, path: str) -> Any:
        """A file to read from anywhere in it."""
        return self.asked(path, lambda: self._files.open_input_file(self._at(path)))

    def open_output(self, path: str) -> Any:
        """A new file, to be closed and then synced by whoever writes it."""

        def begin() -> Any:
            self._files.create_dir(self._at(path).rpartition("/")[0], recursive=True)
            return self._files.open_output_stream(self._at(path))

        return self.asked(path, begin)

    def put(self, path: str, data: bytes) -> None:
        """Writes a small file that readers see as a whole or not at all."""
        part = f"{path}.part"
        with self.open_output(part) as file:
            self.asked(path, lambda: file.write(data))
        self.sync(part)
        self.asked(path, lambda: self._files.move(self._at(part), self._at(path)))
        self._sync_folder(path)

    def sync(self, path: str) -> None:
        """Waits until a written file is on the disk; object stores have it there once it is closed."""
        if isinstance(self._files, LocalFileSystem):
            self.asked(path, lambda: _sync(self._at(path)))
            self._sync_folder(path)

    def remove(self, path: str) -> None:
        """Removes a file; one that is not there is as well."""

        def remove() -> None:
            try:
                self._files.delete_file(self._at(path))
            except FileNotFoundError:
                return

        self.asked(path, remove)

    def _sync_folder(self, path: str) -> None:
        """A name is on the disk only when its folder is, up to the archive's own."""
        folder = self._at(path)
        while isinstance(self._files, LocalFileSystem) and len(folder) > len(self._root):
            folder = folder.rpartition("/")[0]
            _sync(folder)

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}".rstrip("/")

    def asked(self, path: str, ask: Callable[[], T]) -> T:
        """The answer of the file system to anything that is asked of a file.

        Raises:
            InfrastructureError: it is an error.
        """
        try:
            return ask()
        except (OSError, pa.ArrowException) as error:
            what = f"the archive {self.name}: {path} cannot be used: {veiled(str(error))}"
            if getattr(error, "errno", None) in _FULL:
                what += "; make room and run it again: it goes on behind the last whole file"
            raise InfrastructureError(what) from error


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
