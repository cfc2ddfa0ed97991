"""The archive as folds read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from leftfold.engine.bulk_log import BulkRecord, Range
from leftfold.engine.hole import hole
from leftfold.errors import InfrastructureError
from leftfold.parquet.coverage import Piece, end_of, pieces_of
from leftfold.parquet.manifest import union
from leftfold.parquet.manifests import read_manifests
from leftfold.parquet.place import Place
from leftfold.parquet.reading import read_piece
from leftfold.parquet.searching import first_since

__all__ = ["ParquetArchive"]


class ParquetArchive:
    """An Archive in a directory; what it holds of a topic is looked up once."""

    def __init__(self, uri: str) -> None:
        self._place = Place(uri)
        self._topics: dict[str, dict[int, list[Piece]]] = {}
        self._identities: dict[str, set[str]] = {}

    @property
    def place(self) -> str:
        """The directory, as messages call it."""
        return self._place.name

    def ends(self, topic: str) -> Mapping[int, int]:
        """Per partition the offset up to which everything from 0 is there."""
        return {partition: end_of(pieces) for partition, pieces in self._pieces(topic).items()}

    def identity(self, topic: str) -> str:
        """The id of the topic that was archived.

        Raises:
            InfrastructureError: manifests of several topics lie together.
        """
        self._pieces(topic)
        found = sorted(self._identities[topic])
        if len(found) > 1:
            raise InfrastructureError(
                f"{self.place}/{topic} holds manifests of several topics of that name, {' and '.join(found)}; they are "
                f"no one log: keep each in a directory of its own"
            )
        return found[0] if found else ""

    def read(self, part: Range) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range, file after file."""
        for piece in self._within(part):
            yield from read_piece(self._place, part.topic, piece)

    def since(self, part: Range, time: int) -> int | None:
        """The offset of the first record of a range at or after a time in ms since 1970, None when all are older."""
        found = (first_since(self._place, part.topic, piece, time) for piece in self._within(part))
        return next((offset for offset in found if offset is not None), None)

    def _within(self, part: Range) -> Iterator[Piece]:
        """What the range consists of, in order."""
        pieces = self._pieces(part.topic).get(part.partition, [])
        if part.end > end_of(pieces):
            raise hole(part.topic, part.partition, max(part.start, end_of(pieces)), part.end, archive=self.place)
        for piece in pieces:
            start, end = max(piece.start, part.start), min(piece.end, part.end)
            if start < end:
                yield Piece(piece.span, start, end)

    def _pieces(self, topic: str) -> dict[int, list[Piece]]:
        if topic not in self._topics:
            manifests = read_manifests(self._place, topic)
            self._identities[topic] = {manifest.identity for manifest in manifests}
            spans = union(manifests)
            self._topics[topic] = {partition: pieces_of(found) for partition, found in spans.items()}
        return self._topics[topic]
