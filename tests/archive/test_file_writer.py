"""A disk that is full while the archive is written: an error with the remedy, and no file is left."""

from __future__ import annotations

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

for folder, limit in ((sys.argv[1], resource.RLIM_INFINITY), (sys.argv[2], 10_000)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    writer = FileWriter(ArchiveFileSystem(folder), "t.events", 0, 0, 0)
    try:
        writer.add([RawRecord("t.events", 0, n, b"k", os.urandom(1000), (), 0) for n in range(100)])
        writer.close(100)
        print("written")
    except InfrastructureError as error:
        writer.abandon()
        print(error)
"""
"""A hundred records, where files may be of any length and where none may be longer than a limit."""


def test_a_full_disk_is_an_error_with_the_file_and_the_remedy(tmp_path: Path) -> None:
    for name in ("large", "full"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-c", WRITE, str(tmp_path / "large"), str(tmp_path / "full")]
    written, told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert written == "written"
    assert told.startswith(f"the archive {tmp_path / 'full'}: t.events/day=1970-01-01/00000-")
    assert told.endswith("make room and run it again: it continues after the last complete file")
    assert ArchiveFileSystem(str(tmp_path / "full")).names("") == []
