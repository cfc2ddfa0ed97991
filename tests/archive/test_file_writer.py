"""A disk that is full while the archive is written: an error with the remedy, and no file is left."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from leftfold.parquet.filesystem import ArchiveFileSystem

WRITE = """
import os, resource, sys
from leftfold.errors import InfrastructureError
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.parquet.file_writer import FileWriter
from leftfold.ports.protocols import RawRecord

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
writer = FileWriter(ArchiveFileSystem(sys.argv[1]), "t.events", 0, 0, 0)
try:
    writer.add([RawRecord("t.events", 0, n, b"k", os.urandom(1000), (), 0) for n in range(100)])
    writer.close(100)
    print("written")
except InfrastructureError as error:
    writer.abandon()
    print(error)
"""


def write_with_limit(place: Path, limit: int) -> str:
    """What comes of writing a hundred records where no file may be longer than the limit."""
    command = [sys.executable, "-c", WRITE, str(place), str(limit)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_full_disk_is_an_error_with_the_file_and_the_remedy(tmp_path: Path) -> None:
    told = write_with_limit(tmp_path, 10_000)
    assert told.startswith(f"the archive {tmp_path}: t.events/day=1970-01-01/00000-")
    assert told.endswith("make room and run it again: it continues after the last complete file")
    assert ArchiveFileSystem(str(tmp_path)).names("") == []
    assert write_with_limit(tmp_path, resource.RLIM_INFINITY) == "written"
