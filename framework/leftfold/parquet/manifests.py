"""The manifests of a topic in its folder: read together, added to, and now and then made one."""

from __future__ import annotations

import time
from secrets import token_hex

from leftfold.errors import InfrastructureError
from leftfold.parquet.manifest import Manifest, Span, union
from leftfold.parquet.place import Place

__all__ = ["add_manifest", "merge_manifests", "read_manifests"]

_FOLDER = "_manifest"
_PATIENCE = 10.0


def read_manifests(place: Place, topic: str) -> list[Manifest]:
    """Every manifest there is.

    Raises:
        InfrastructureError: they change faster than they can be read.
        ContractError: one of them is broken, or of a later format.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        names = _names(place, topic)
        texts = [(name, place.read(name)) for name in names]
        if all(text is not None for _, text in texts):
            return [Manifest.from_json(text, f"{place.name}/{name}") for name, text in texts if text is not None]
        # One was merged into another meanwhile, which was there before it went: look again.
        if time.monotonic() > deadline:
            raise InfrastructureError(f"the manifests in {place.name}/{topic} cannot be read together; try again")


def add_manifest(place: Place, topic: str, identity: str, spans: tuple[Span, ...]) -> None:
    """Says that these spans are there; their files must be on the disk."""
    place.put(f"{topic}/{_FOLDER}/{token_hex(8)}.json", Manifest(topic, identity, spans).to_json())


def merge_manifests(place: Place, topic: str) -> None:
    """Makes one manifest of all: first the whole, then the parts go; a reader in between sees both, which is the same.

    Spans that others hold entirely are left out.
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


def _needed(spans: list[Span]) -> list[Span]:
    """Those that hold anything which those before them do not."""
    found, reached = [], -1
    for span in spans:
        if span.end > reached:
            found.append(span)
            reached = span.end
    return found


def _names(place: Place, topic: str) -> list[str]:
    return [name for name in place.names(f"{topic}/{_FOLDER}") if name.endswith(".json")]
