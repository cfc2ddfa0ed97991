"""Archives new records of a topic up to the last stable offset, with one archiver at a time."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import TypedDict

from leftfold.engine.log_gaps import check_archived, log_gap
from leftfold.errors import ContractError, Fenced, InfrastructureError
from leftfold.model.position import Position
from leftfold.parquet.archive_reader import ParquetArchive
from leftfold.parquet.file_writer import FileWriter
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.parquet.manifest import OffsetSpan, add_manifest, merge_manifests, read_manifests
from leftfold.ports.bulk import BulkLog, BulkRecord, OffsetRange
from leftfold.ports.message_codec import UNREADABLE, header, is_last_of_decision
from leftfold.ports.protocols import RawRecord

__all__ = ["LEASE_SECONDS", "Archived", "Archiver", "Lease", "leased"]


LEASE_SECONDS = 30.0
_FILE = "_lease.json"
_NO_TIMESTAMP = 0
"""The kind of timestamp that no record in Kafka has, only what stands for a batch that cannot be decompressed."""


class _Claim(TypedDict):
    host: str
    process: int
    token: str
    until: float


class Lease:
    """A lease on the archive folder of a topic; `renew` it at least every few seconds.

    Args:
        clock: seconds since 1970, which must agree on all hosts within a few seconds.
    """

    def __init__(self, place: ArchiveFileSystem, topic: str, *, clock: Callable[[], float] = time.time) -> None:
        self._place, self._path, self._clock = place, f"{topic}/{_FILE}", clock
        self._token, self._until = token_hex(8), 0.0

    def take(self) -> None:
        """Takes the lease.

        Raises:
            InfrastructureError: another process holds it.
        """
        if (held := self._holder()) is not None:
            raise InfrastructureError(
                f"{self._place.name}/{self._path}: {_named(held)} works on this archive; "
                f"wait for it, or, if it is dead, {max(0.0, held['until'] - self._clock()):.0f} s"
            )
        self._write()
        self._check()

    def renew(self) -> None:
        """Extends the lease, once a third of it has passed.

        Raises:
            Fenced: another process has taken the lease, since this one did not renew it in time.
        """
        if self._clock() > self._until - LEASE_SECONDS * 2 / 3:
            self._check()
            self._write()

    def owner(self) -> str:
        """The process that holds the lease, as `process 7 on host`; '' = none does."""
        held = self._holder()
        return _named(held) if held is not None else ""

    def give_up(self) -> None:
        """Releases the lease, unless another process has taken it."""
        claim = self._read()
        if claim is not None and claim["token"] == self._token:
            self._place.remove(self._path)

    def _check(self) -> None:
        claim = self._read()
        if claim is None or claim["token"] != self._token:
            raise Fenced(f"{self._place.name}/{self._path}: another archiver has taken over; this one ends")

    def _write(self) -> None:
        self._until = self._clock() + LEASE_SECONDS
        claim = _Claim(host=socket.gethostname(), process=os.getpid(), token=self._token, until=self._until)
        self._place.put(self._path, json.dumps(claim).encode())

    def _read(self) -> _Claim | None:
        """The lease in the file; None if it cannot be read."""
        text = self._place.read(self._path)
        try:
            found = json.loads(text or b"{}")
            return _Claim(
                host=str(found["host"]),
                process=int(found["process"]),
                token=found["token"],
                until=float(found["until"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def _holder(self) -> _Claim | None:
        claim = self._read()
        if claim is None or claim["until"] < self._clock():
            return None
        return None if claim["host"] == socket.gethostname() and not _lives(claim["process"]) else claim


def _named(claim: _Claim) -> str:
    return f"process {claim['process']} on {claim['host']}"


@contextmanager
def leased(place: ArchiveFileSystem, topic: str) -> Iterator[Lease]:
    """Holds the lease of a topic's archive during the block."""
    lease = Lease(place, topic)
    lease.take()
    try:
        yield lease
    finally:
        lease.give_up()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_FILE_RECORDS = 1_000_000
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Archived:
    """The result of an archiver run: what it added, and the position up to which the topic is archived."""

    topic: str
    records: int
    files: int
    bytes: int
    position: Position


class Archiver:
    """Adds the new records of one topic to its archive.

    Each complete file gets a manifest at once, so a killed run loses only the file that it was writing, and the next
    run continues after the last complete one.

    Args:
        identity: the topic's id in its cluster, to distinguish two topics of the same name.
        most: maximum number of records in a file.
        tell: called with the number of records read.
    """

    def __init__(
        self,
        place: ArchiveFileSystem,
        topic: str,
        identity: str,
        log: BulkLog,
        *,
        most: int = _FILE_RECORDS,
        tell: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._place, self._topic, self._identity, self._log = place, topic, identity, log
        self._most, self._tell = most, tell
        self._spans: list[OffsetSpan] = []

    def parts(self) -> list[OffsetRange]:
        """The offset ranges to be archived now.

        Raises:
            InfrastructureError: the next records have been deleted, the topic is shorter than its archive, or that is
                another topic's.
        """
        ends = ParquetArchive(self._place.uri).ends(self._topic)
        starts, stable = self._log.starts([self._topic]), self._log.stable_ends([self._topic])
        self._check_identity()
        check_archived(self._topic, ends, stable, archive=self._place.name)
        parts = []
        for partition in range(self._log.partitions(self._topic)):
            begin, low = ends.get(partition, 0), starts.next_offset(self._topic, partition)
            if begin < low:
                raise log_gap(self._topic, partition, begin, low, archive=self._place.name)
            parts.append(OffsetRange(self._topic, partition, begin, stable.next_offset(self._topic, partition)))
        return parts

    def run(self) -> Archived:
        """Archives all new records up to the last stable offset.

        Raises:
            InfrastructureError: another archiver is running, or records were deleted. Fenced: another one took over.
            ContractError: a record cannot be archived byte by byte.
        """
        with leased(self._place, self._topic) as lease:
            parts = self.parts()
            for part in parts:
                if part.start < part.end:
                    self._archive(part, lease)
            lease.renew()
            merge_manifests(self._place, self._topic)
        ends = ParquetArchive(self._place.uri).ends(self._topic)
        records, size = sum(s.records for s in self._spans), sum(s.bytes for s in self._spans)
        files = sum(bool(s.path) for s in self._spans)
        return Archived(self._topic, records, files, size, Position({self._topic: ends}))

    def _archive(self, part: OffsetRange, lease: Lease) -> None:
        writer: FileWriter | None = None
        reached = part.start
        try:
            for records in self._whole(part, lease):
                day = _day(records[0])
                if writer is not None and (writer.day != day or writer.records >= self._most):
                    full, writer, reached = writer, None, records[0].offset
                    self._commit(full.close(reached))
                if writer is None:
                    writer = FileWriter(self._place, part.topic, part.partition, reached, day)
                writer.add(records)
            end = self._whole_to
            if writer is not None:
                # From here on a manifest may name the file, so it must not be abandoned.
                full, writer = writer, None
                self._commit(full.close(end))
            elif reached < end:
                self._commit(OffsetSpan(part.partition, reached, end))
        except BaseException:
            if writer is not None:
                writer.abandon()
            raise

    def _whole(self, part: OffsetRange, lease: Lease) -> Iterator[list[RawRecord]]:
        """Reads the records in groups of whole decisions of one day; sets `_whole_to` to the end of the last one."""
        held: list[RawRecord] = []
        for records in self._log.read(part):
            lease.renew()
            held += (_record(part, record) for record in records)
            count = next((n for n in range(len(held), 0, -1) if _is_last(held[n - 1])), 0)
            whole, held = held[:count], held[count:]
            yield from _by_day(whole)
            self._tell(len(records))
        self._whole_to = held[0].offset if held else part.end

    def _commit(self, span: OffsetSpan) -> None:
        add_manifest(self._place, self._topic, self._identity, (span,))
        self._spans.append(span)

    def _check_identity(self) -> None:
        for manifest in read_manifests(self._place, self._topic):
            if (manifest.topic, manifest.identity) != (self._topic, self._identity):
                raise InfrastructureError(
                    f"{self._place.name}/{self._topic} is the archive of another topic ({manifest.topic} with id "
                    f"{manifest.identity}, and this one is {self._identity}): the topic was recreated. "
                    f"Archive it elsewhere: --to DIR"
                )


def _record(part: OffsetRange, record: BulkRecord) -> RawRecord:
    try:
        (kind, time_), headers = record.timestamp(), record.headers() or ()
        found = RawRecord(part.topic, part.partition, record.offset(), record.key(), record.value(), headers, time_)
        if kind == _NO_TIMESTAMP and (why := header(found.headers, UNREADABLE)):
            raise ContractError(
                f"{found.address}: the batch that ends here cannot be decompressed ({why.decode(errors='replace')}); "
                f"nothing from there on can be archived, nor trimmed"
            )
        return found
    except (SystemError, UnicodeDecodeError) as error:
        raise ContractError(
            f"{part.topic}[{part.partition}]: a record has a header whose name is not UTF-8 ({error}), which no client "
            f"here can read byte by byte; nothing from there on can be archived, nor trimmed"
        ) from error


def _by_day(records: list[RawRecord]) -> Iterator[list[RawRecord]]:
    """Groups whole decisions, nearly always of one day, by the day on which they begin."""
    if len({_day(record) for record in records}) == 1:
        yield records
        return
    group: list[RawRecord] = []
    begins = True
    for record in records:
        if begins and group and _day(record) != _day(group[0]):
            yield group
            group = []
        group.append(record)
        begins = _is_last(record)
    if group:
        yield group


def _is_last(record: RawRecord) -> bool:
    return is_last_of_decision(header(record.headers, "ce_decision"))


def _day(record: RawRecord) -> int:
    return record.time // _DAY_MS
