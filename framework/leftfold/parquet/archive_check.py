"""Verifies the archive of a topic: offset ranges, file sizes, checksums and every record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.parquet.archive_reader import read_piece
from leftfold.parquet.archiver import Lease
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.parquet.manifest import OffsetSpan, Piece, end_of, pieces_of, read_manifests, union

__all__ = ["ArchiveDamage", "Verified", "verify_archive"]

_CHUNK = 1 << 20


@dataclass(frozen=True)
class ArchiveDamage:
    """A damaged file of an archive, or an offset range without a file (then `path` is '')."""

    partition: int
    path: str
    what: str


@dataclass(frozen=True)
class Verified:
    """The result of verifying a topic's archive.

    Args:
        position: the offsets up to which the archive is complete from 0 on.
        strays: files in no manifest, which a killed run leaves behind; they are never read.
        archiver: the process that is at work on the archive, so that strays were not looked for; '' = none is.
    """

    topic: str
    files: int
    records: int
    bytes: int
    position: Position
    damages: tuple[ArchiveDamage, ...]
    strays: tuple[str, ...]
    archiver: str = ""


def verify_archive(place: ArchiveFileSystem, topic: str, tell: Callable[[int], None] = lambda count: None) -> Verified:
    """Verifies all files in the manifests of a topic.

    Args:
        tell: called after each file with its number of records.

    Raises:
        ContractError: a manifest cannot be read.
    """
    # Read before the manifests, and these are read again at the end: an archiver may add files meanwhile.
    stored = [name.removeprefix(f"{topic}/") for name in place.names(topic)]
    spans = union(read_manifests(place, topic))
    ends: dict[int, int] = {}
    damages: list[ArchiveDamage] = []
    for partition, found in spans.items():
        ends[partition] = end_of(pieces_of(found))
        damages += _gaps(partition, found)
    files = [span for found in spans.values() for span in found if span.path]
    for span in files:
        damages += [ArchiveDamage(span.partition, span.path, what) for what in _wrong(place, topic, span)]
        tell(span.records)
    # The lease first: what its holder had written before it gave the lease up is in a manifest now.
    archiver = Lease(place, topic).owner()
    strays = () if archiver else tuple(_strays(place, topic, stored, {span.path for span in files}))
    records, size = sum(span.records for span in files), sum(span.bytes for span in files)
    return Verified(topic, len(files), records, size, Position({topic: ends}), tuple(damages), strays, archiver)


def _strays(place: ArchiveFileSystem, topic: str, stored: list[str], named: set[str]) -> Iterator[str]:
    """The files that no manifest names: neither those read at first, which name `named`, nor those there now."""
    found = union(read_manifests(place, topic)).values()
    named = named.union(span.path for spans in found for span in spans)
    yield from (name for name in stored if name.startswith("day=") and name not in named)


def _gaps(partition: int, spans: list[OffsetSpan]) -> Iterator[ArchiveDamage]:
    """The offset gaps before the last archived range."""
    at = 0
    for span in spans:
        if span.start > at:
            yield ArchiveDamage(partition, "", f"offsets {at} to {span.start - 1} are in no manifest")
        at = max(at, span.end)


def _wrong(place: ArchiveFileSystem, topic: str, span: OffsetSpan) -> Iterator[str]:
    path = f"{topic}/{span.path}"
    size = place.size(path)
    if size is None:
        yield "is missing"
        return
    if size != span.bytes:
        yield f"has {size:,} bytes, not {span.bytes:,}"
        return
    try:
        if place.asked(path, lambda: _sha256(place, path)) != span.sha256:
            yield "has another sha256 than when it was written"
        for _ in read_piece(place, topic, Piece(span, span.start, span.end)):
            pass
    except InfrastructureError as error:
        yield str(error)


def _sha256(place: ArchiveFileSystem, path: str) -> str:
    found = hashlib.sha256()
    with place.open_input(path) as file:
        while data := file.read(_CHUNK):
            found.update(data)
    return found.hexdigest()
