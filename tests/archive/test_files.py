"""Archived records in their files: folded by columns or one by one alike, and an error where the disk is full."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold.engine.rebuild.stream_fold import StreamFold
from leftfold.engine.views.parking import RowEncodingError
from leftfold.errors import InfrastructureError
from leftfold.model.view import View
from leftfold.parquet.archive_check import verify_archive
from leftfold.parquet.archive_reader import records_of
from leftfold.parquet.archiver import leased
from leftfold.parquet.file_writer import READ, FileWriter, table_of
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.parquet.manifest import add_manifest
from leftfold.ports.bulk import ColumnarRecords, OffsetRange, ReadRecord
from leftfold.ports.protocols import RawRecord
from tests.cli.shell import typing_with
from tests.engine.rebuild.test_bulk_folds import TOPIC, by_name, good, odd, only_counted

PART = OffsetRange(TOPIC, 0, 0, 1_000)
VIEWS = pytest.mark.parametrize("view", [by_name, only_counted], ids=lambda view: view.name)
batches = st.lists(st.lists(good, min_size=1, max_size=12) | st.lists(good | odd, min_size=1, max_size=6), max_size=4)


def numbered(found: list[list[Any]]) -> list[list[RawRecord]]:
    """The records of some batches, one behind the other."""
    offsets = iter(range(1_000))
    return [
        [RawRecord(TOPIC, 0, next(offsets), key, value, headers, 5) for key, value, headers in batch] for batch in found
    ]


def archived(batch: list[RawRecord], start: int = 0, end: int = 1_000) -> Any:
    (made,) = table_of(batch).select(READ).combine_chunks().to_batches()
    return records_of(made, start, end)


def folded(view: View[Any, Any], batches: list[Any], tracked: Collection[str] = ()) -> tuple[Any, ...]:
    fold = StreamFold(view, PART, tracked=tracked)
    for batch in batches:
        fold.add(batch)
    try:
        rows = fold.rows()
    except RowEncodingError as error:
        assert not tracked, "a row that is tracked can be stored"
        return folded(view, batches, error.rows)
    return sorted(rows, key=lambda row: row.key), fold.result(rows)


@VIEWS
@settings(max_examples=50, deadline=None)
@given(found=batches)
def test_columns_fold_as_records_do(view: Any, found: list[list[Any]]) -> None:
    wanted = numbered(found)
    read = [list(map(ReadRecord, batch)) for batch in wanted]
    assert folded(view, [archived(batch) for batch in wanted]) == folded(view, read)


@settings(max_examples=40, deadline=None)
@given(found=batches, start=st.integers(0, 20), length=st.integers(0, 20))
def test_a_part_of_a_batch_is_what_lies_between_its_offsets(found: list[list[Any]], start: int, length: int) -> None:
    for batch in numbered(found):
        records = archived(batch, start, start + length)
        there = [record for record in batch if start <= record.offset < start + length]
        assert [(r.offset(), r.key(), r.value(), tuple(r.headers() or ())) for r in records] == [
            (record.offset, record.key, record.value, tuple(record.headers)) for record in there
        ]


def test_records_of_processors_are_read_by_columns_and_others_are_not() -> None:
    (processor,) = numbered([[(b"a", b"{}", [(f"ce_{n}", b"x") for n in range(3)])]])
    assert archived(processor).header_columns() is None
    names = ["1", "2", "3", "ce_type", "5", "ce_time", "ce_sequence", "8"]
    (processor,) = numbered([[(b"a", b"{}", [(name, name.encode()) for name in names])] * 3])
    reported = archived(processor).header_columns()
    assert isinstance(archived(processor), ColumnarRecords)
    assert list(reported) == [(b"ce_type", b"ce_time", b"ce_sequence", b"a", b"{}")] * 3


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
    written, reported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert written == "written"
    assert reported.startswith(f"the archive {tmp_path / 'full'}: t.events/day=1970-01-01/00000-")
    assert reported.endswith("make room and run it again: it continues after the last complete file")
    assert ArchiveFileSystem(str(tmp_path / "full")).names("") == []


class Upload:
    """A stream to an object store: what was written is sent, or refused, when it is closed."""

    def __init__(self, to: Any, *, room: int = 1_000_000) -> None:
        self._to, self._room = to, room

    def write(self, data: Any) -> Any:
        self._room -= len(data)
        if self._room < 0:
            raise OSError("network connection during UploadPart")
        return self._to.write(data)

    def flush(self) -> None:
        self._to.flush()

    def close(self) -> None:
        self._to.close()
        raise OSError("access denied during CompleteMultipartUpload")


class Store(ArchiveFileSystem):
    """An archive whose streams are such uploads, each with room for so many bytes."""

    room = 1_000_000

    def open_output(self, path: str) -> Any:
        return Upload(super().open_output(path), room=self.room)


def test_an_object_store_that_refuses_a_file_when_it_is_closed_is_an_error_of_the_archive(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    refused = pytest.raises(InfrastructureError, match=f"the archive {tmp_path}: .*CompleteMultipartUpload")
    with refused:
        store.put("t.events/lease.json", b"{}")
    assert store.read("t.events/lease.json") is None
    with refused:
        FileWriter(store, "t.events", 0, 0, 0).close(1)
    store.room = 1
    unwritten = pytest.raises(InfrastructureError, match=f"the archive {tmp_path}: .*UploadPart")
    with unwritten:
        store.put("t.events/lease.json", b"{}")
    with unwritten:
        FileWriter(store, "t.events", 0, 0, 0)


def test_a_file_that_cannot_be_closed_is_abandoned_without_another_error(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.room = 10
    writer = FileWriter(store, "t.events", 0, 0, 0)
    writer.add([RawRecord("t.events", 0, 0, b"k", b"v", (), 0)])
    with pytest.raises(InfrastructureError, match="UploadPart"):
        writer.close(1)
    writer.abandon()
    assert [name for name in store.names("t.events") if "day=" in name] == []


def committed(place: ArchiveFileSystem, start: int, *, listed: bool = True) -> str:
    """Writes a file of five records from an offset on, and the manifest that names it; returns its path."""
    writer = FileWriter(place, TOPIC, 0, start, 0)
    writer.add([RawRecord(TOPIC, 0, start + n, b"k", b"v", (("ce_type", b"b.X.v1"),), 0) for n in range(5)])
    span = writer.close(start + 5)
    if listed:
        add_manifest(place, TOPIC, "id", (span,))
    return span.path


def test_a_file_that_is_archived_while_the_archive_is_verified_is_no_stray(tmp_path: Path) -> None:
    place = ArchiveFileSystem(str(tmp_path))
    committed(place, 0)
    lost, running = committed(place, 5, listed=False), FileWriter(place, TOPIC, 0, 5, 0)

    def beside(count: int) -> None:
        # One that an archiver was writing when the files were listed, and one that it has begun after that.
        add_manifest(place, TOPIC, "id", (running.close(10),))
        committed(place, 10)

    verified = verify_archive(place, TOPIC, beside)
    assert (verified.files, verified.damages, verified.strays) == (1, (), (lost,))
    assert verify_archive(place, TOPIC).files == 3


def test_no_strays_are_named_while_an_archiver_is_at_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = typing_with(capsys)
    place = ArchiveFileSystem(str(tmp_path))
    committed(place, 0)
    written = committed(place, 5, listed=False)
    words = ["log", "verify-archive", TOPIC.removesuffix(".events"), "--archive", str(tmp_path)]
    archiver = f"process {os.getpid()} on {socket.gethostname()}"
    with leased(place, TOPIC):
        found = verify_archive(place, TOPIC)
        assert (found.strays, found.archiver) == ((), archiver)
        note = f"files that no manifest names were not looked for: {archiver} works on this archive"
        assert note in typed(*words).ok().err
    found = verify_archive(place, TOPIC)
    assert (found.strays, found.archiver) == ((written,), "")
    assert "not looked for" not in typed(*words).ok().err


def test_an_archive_in_a_folder_with_a_space_is_named_as_one_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my backup"
    result = typing_with(capsys)("log", "verify-archive", "ledgers", "--archive", str(folder))
    result.ended(69, f"fill it: leftfold log archive ledgers --to '{folder}'\n")
