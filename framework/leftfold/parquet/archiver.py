"""Archives a topic from the end of its archive up to the stable end of the log, one archiver at a time per topic."""

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

from leftfold.engine.archive.gaps import log_gap
from leftfold.errors import ContractError, Fenced, InfrastructureError
from leftfold.model.position import Position
from leftfold.parquet.archive_reader import ParquetArchive
from leftfold.parquet.file_writer import FileWriter
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.parquet.manifest import Span, add_manifest, merge_manifests, read_manifests
from leftfold.ports.bulk import BulkLog, BulkRecord, OffsetRange, raw
from leftfold.ports.codec import header
from leftfold.ports.protocols import RawRecord

__all__ = ["LEASE_SECONDS", "Archived", "Archiver", "Lease", "leased"]


LEASE_SECONDS = 30.0
_FILE = "_lease.json"


class _Told(TypedDict):
    host: str
    process: int
    token: str
    until: float


class Lease:
    """A claim to a topic's folder; `renew` it at least every few seconds.

    Args:
        clock: seconds since 1970, the same everywhere within a few seconds.
    """

    def __init__(self, place: ArchiveFileSystem, topic: str, *, clock: Callable[[], float] = time.time) -> None:
        self._place, self._path, self._clock = place, f"{topic}/{_FILE}", clock
        self._token, self._until = token_hex(8), 0.0

    def take(self) -> None:
        """Claims the folder.

        Raises:
            InfrastructureError: somebody else holds it.
        """
        held = self._holder()
        if held is not None:
            raise InfrastructureError(
                f"{self._place.name}/{self._path}: process {held['process']} on {held['host']} works on this archive; "
                f"wait for it, or, if it is dead, {max(0.0, held['until'] - self._clock()):.0f} s"
            )
        self._write()
        self._check()

    def renew(self) -> None:
        """Makes the claim last on, once a third of it is over.

        Raises:
            Fenced: somebody else has taken the folder meanwhile, since this process did not get around to it in time.
        """
        if self._clock() > self._until - LEASE_SECONDS * 2 / 3:
            self._check()
            self._write()

    def give_up(self) -> None:
        """Lets others work, unless it is theirs already."""
        told = self._told()
        if told is not None and told["token"] == self._token:
            self._place.remove(self._path)

    def _check(self) -> None:
        told = self._told()
        if told is None or told["token"] != self._token:
            raise Fenced(f"{self._place.name}/{self._path}: another archiver has taken over; this one ends")

    def _write(self) -> None:
        self._until = self._clock() + LEASE_SECONDS
        told = _Told(host=socket.gethostname(), process=os.getpid(), token=self._token, until=self._until)
        self._place.put(self._path, json.dumps(told).encode())

    def _told(self) -> _Told | None:
        """The claim in the file; one that nobody can read is none."""
        text = self._place.read(self._path)
        try:
            told = json.loads(text or b"{}")
            return _Told(
                host=str(told["host"]), process=int(told["process"]), token=told["token"], until=float(told["until"])
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def _holder(self) -> _Told | None:
        told = self._told()
        if told is None or told["until"] < self._clock():
            return None
        return None if told["host"] == socket.gethostname() and not _lives(told["process"]) else told


@contextmanager
def leased(place: ArchiveFileSystem, topic: str) -> Iterator[Lease]:
    """A claim that lasts as long as the block."""
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
    """What a run came to: how much it added, and the position up to which the topic is archived now."""

    topic: str
    records: int
    files: int
    bytes: int
    position: Position


class Archiver:
    """Adds to the archive of one topic. A file is told of as soon as it is whole, so a run that dies loses no more
    than the file it was writing, and the next one goes on behind it.

    Args:
        identity: the topic's id in its cluster, so that two topics of one name are never taken for one.
        most: records in a file.
        tell: told how many records were read.
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
        self._spans: list[Span] = []

    def parts(self) -> list[OffsetRange]:
        """What is there to be archived now.

        Raises:
            InfrastructureError: what should come next has been deleted, or the archive is another topic's.
        """
        ends = ParquetArchive(self._place.uri).ends(self._topic)
        starts, stable = self._log.starts([self._topic]), self._log.stable_ends([self._topic])
        self._check_identity()
        parts = []
        for partition in range(self._log.partitions(self._topic)):
            begin, low = ends.get(partition, 0), starts.next_offset(self._topic, partition)
            if begin < low:
                raise log_gap(self._topic, partition, begin, low, archive=self._place.name)
            parts.append(OffsetRange(self._topic, partition, begin, stable.next_offset(self._topic, partition)))
        return parts

    def run(self) -> Archived:
        """Archives what is there.

        Raises:
            InfrastructureError: another archiver is at work, or records are gone. Fenced: another one took over.
            ContractError: a record cannot be kept byte by byte.
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
                # From here on a manifest may name the file, whatever happens: it is not to be abandoned.
                full, writer = writer, None
                self._commit(full.close(end))
            elif reached < end:
                self._commit(Span(part.partition, reached, end))
        except BaseException:
            if writer is not None:
                writer.abandon()
            raise

    def _whole(self, part: OffsetRange, lease: Lease) -> Iterator[list[RawRecord]]:
        """The records in whole decisions of one day; `_whole_to` says afterwards up to where there are such only."""
        held: list[RawRecord] = []
        for records in self._log.read(part):
            lease.renew()
            held += (_record(part, record) for record in records)
            count = next((n for n in range(len(held), 0, -1) if _is_last(held[n - 1])), 0)
            whole, held = held[:count], held[count:]
            yield from _by_day(whole)
            self._tell(len(records))
        self._whole_to = held[0].offset if held else part.end

    def _commit(self, span: Span) -> None:
        add_manifest(self._place, self._topic, self._identity, (span,))
        self._spans.append(span)

    def _check_identity(self) -> None:
        for manifest in read_manifests(self._place, self._topic):
            if (manifest.topic, manifest.identity) != (self._topic, self._identity):
                raise InfrastructureError(
                    f"{self._place.name}/{self._topic} is the archive of another topic ({manifest.topic} with id "
                    f"{manifest.identity}, and this one is {self._identity}): somebody has made the topic anew. "
                    f"Archive it elsewhere: --to DIR"
                )


def _record(part: OffsetRange, record: BulkRecord) -> RawRecord:
    try:
        return raw(part, record)
    except (SystemError, UnicodeDecodeError) as error:
        raise ContractError(
            f"{part.topic}[{part.partition}]: a record has a header whose name is no UTF-8 ({error}), which no client "
            f"here can read byte by byte; nothing from there on can be archived, nor trimmed"
        ) from error


def _by_day(records: list[RawRecord]) -> Iterator[list[RawRecord]]:
    """Whole decisions, nearly always of one day, in groups by the day on which they begin."""
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
    k, _, n = header(record.headers, "ce_decision").partition(b"/")
    return k == n or not n


def _day(record: RawRecord) -> int:
    return record.time // _DAY_MS
