"""The manifests of an archive: JSON files that list its offset ranges and their Parquet files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from secrets import token_hex
from typing import NamedTuple

from leftfold.errors import ContractError, InfrastructureError
from leftfold.parquet.filesystem import ArchiveFileSystem

__all__ = [
    "Manifest",
    "OffsetSpan",
    "Piece",
    "add_manifest",
    "end_of",
    "merge_manifests",
    "pieces_of",
    "read_manifests",
    "union",
]


FORMAT = 1


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """An archived offset range of a partition, complete from `start` to `end` (not included).

    Args:
        path: the file with the records, relative to the topic's folder; '' = all offsets of the range are transaction
            markers or aborted records.
        records, bytes, sha256: of the file.
    """

    partition: int
    start: int
    end: int
    path: str = ""
    records: int = 0
    bytes: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest of an archive: spans of one topic.

    Args:
        identity: the id of the archived topic in its cluster.
    """

    topic: str
    identity: str
    spans: tuple[OffsetSpan, ...]

    def to_json(self) -> bytes:
        """The manifest as JSON, one span per line."""
        spans = ",\n".join(json.dumps(asdict(span), separators=(",", ":")) for span in self.spans)
        head = json.dumps({"format": FORMAT, "topic": self.topic, "identity": self.identity})
        return f'{head[:-1]}, "spans": [\n{spans}\n]}}\n'.encode()

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Manifest:
        """Reads a manifest from JSON.

        Raises:
            ContractError: it is not a manifest, or has a later format.
        """
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise ContractError(f"{where} has format {found['format']!r}, and this code knows {FORMAT}; upgrade it")
            return cls(found["topic"], found["identity"], tuple(OffsetSpan(**span) for span in found["spans"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ContractError(
                f"{where} is not a manifest of an archive ({error!r}); restore it, or remove it: ranges that only it "
                f"lists then count as not archived"
            ) from error


def union(manifests: Iterable[Manifest]) -> dict[int, list[OffsetSpan]]:
    """The spans of every partition, sorted by start, the longest first."""
    found: dict[int, set[OffsetSpan]] = {}
    for manifest in manifests:
        for span in manifest.spans:
            found.setdefault(span.partition, set()).add(span)
    return {p: sorted(spans, key=lambda s: (s.start, -s.end, s.path)) for p, spans in sorted(found.items())}


class Piece(NamedTuple):
    """The part of a span, from `start` to `end`, that no earlier piece holds."""

    span: OffsetSpan
    start: int
    end: int


def pieces_of(spans: Iterable[OffsetSpan]) -> list[Piece]:
    """The consecutive pieces from offset 0 up to the first gap, without overlap.

    Args:
        spans: of one partition, sorted by start, the longest first.
    """
    pieces: list[Piece] = []
    at = 0
    for span in spans:
        if span.start > at:
            break
        if span.end > at:
            pieces.append(Piece(span, at, span.end))
            at = span.end
    return pieces


def end_of(pieces: list[Piece]) -> int:
    """The first offset after the pieces."""
    return pieces[-1].end if pieces else 0


_FOLDER = "_manifest"
_PATIENCE = 10.0


def read_manifests(place: ArchiveFileSystem, topic: str) -> list[Manifest]:
    """Reads all manifests of a topic.

    Raises:
        InfrastructureError: they change faster than they can be read.
        ContractError: one of them is broken, or has a later format.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        names = _names(place, topic)
        texts = [(name, place.read(name)) for name in names]
        if all(text is not None for _, text in texts):
            return [Manifest.from_json(text, f"{place.name}/{name}") for name, text in texts if text is not None]
        # One was removed meanwhile, after it was merged into another: read again.
        if time.monotonic() > deadline:
            raise InfrastructureError(f"the manifests in {place.name}/{topic} cannot be read together; try again")


def add_manifest(place: ArchiveFileSystem, topic: str, identity: str, spans: tuple[OffsetSpan, ...]) -> None:
    """Adds a manifest with these spans; their files must be on the disk already."""
    place.put(f"{topic}/{_FOLDER}/{token_hex(8)}.json", Manifest(topic, identity, spans).to_json())


def merge_manifests(place: ArchiveFileSystem, topic: str) -> None:
    """Merges all manifests of a topic into one.

    The merged one is written before the others are removed; a reader in between sees both, with the same result. Spans
    that others hold entirely are left out.
    """
    names = _names(place, topic)
    if len(names) < 2:
        return
    texts = [(name, place.read(name)) for name in names]
    manifests = [Manifest.from_json(text, name) for name, text in texts if text is not None]
    spans = [span for found in union(manifests).values() for span in _needed(found)]
    add_manifest(place, topic, manifests[0].identity, tuple(spans))
    for name in names:
        place.remove(name)


def _needed(spans: list[OffsetSpan]) -> list[OffsetSpan]:
    """The spans that hold offsets which earlier spans do not."""
    found, reached = [], -1
    for span in spans:
        if span.end > reached:
            found.append(span)
            reached = span.end
    return found


def _names(place: ArchiveFileSystem, topic: str) -> list[str]:
    return [name for name in place.names(f"{topic}/{_FOLDER}") if name.endswith(".json")]
