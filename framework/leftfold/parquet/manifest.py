"""What an archive says it holds: JSON files that only ever add to each other, so that no order among them matters.

The log never changes, so whatever two runs say of one range is both true; the archive of a topic is the union of all
its manifests. That needs no lock and no replacing of files, which object stores do not all have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from leftfold.errors import ContractError

__all__ = ["FORMAT", "Manifest", "Span", "union"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets `start` to `end` (not included) of a partition, every one accounted for.

    Args:
        path: of the file that holds the range's records, relative to the topic's folder; '' = the range has none: all
            its offsets are markers or aborted records.
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
    """Some spans of one topic.

    Args:
        identity: the id of the topic that was archived, as its cluster calls it.
    """

    topic: str
    identity: str
    spans: tuple[Span, ...]

    def to_json(self) -> bytes:
        """The manifest as a file, a span a line."""
        spans = ",\n".join(json.dumps(asdict(span), separators=(",", ":")) for span in self.spans)
        head = json.dumps({"format": FORMAT, "topic": self.topic, "identity": self.identity})
        return f'{head[:-1]}, "spans": [\n{spans}\n]}}\n'.encode()

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Manifest:
        """Reads what `to_json` wrote.

        Raises:
            ContractError: it is no manifest, or one of a later format.
        """
        try:
            told = json.loads(text)
            if told["format"] != FORMAT:
                raise ContractError(f"{where} has format {told['format']!r}, and this code knows {FORMAT}; upgrade it")
            return cls(told["topic"], told["identity"], tuple(Span(**span) for span in told["spans"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ContractError(
                f"{where} is no manifest of an archive ({error!r}); restore it, or remove it: what it alone told of "
                f"then counts as not archived"
            ) from error


def union(manifests: Iterable[Manifest]) -> dict[int, list[Span]]:
    """The spans of every partition, in order of their starts, the longest first."""
    found: dict[int, set[Span]] = {}
    for manifest in manifests:
        for span in manifest.spans:
            found.setdefault(span.partition, set()).add(span)
    return {p: sorted(spans, key=lambda s: (s.start, -s.end, s.path)) for p, spans in sorted(found.items())}
