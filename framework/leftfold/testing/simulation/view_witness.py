"""Checks the rows of views from the topics and the bytes in Redis alone, with no code of the engine or its adapters."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from leftfold.errors import ContractError
from leftfold.model.keys import NO_ROW
from leftfold.model.row_codec import ordered
from leftfold.model.view import View
from leftfold.testing.simulation.kafka.brokers import Cluster

__all__ = ["WitnessedRead", "fold_violations", "parked_rows", "stale_reads", "store_violations"]


@dataclass(frozen=True)
class WitnessedRead:
    """A read of a row by a stream's key: after a receipt, or relative to an earlier read (version 0)."""

    view: View[Any, Any]
    key: str
    version: int
    row: Any


_STOPPED = object()
"""Stands for a row whose fold has raised: it is parked, and stays as it was."""


def fold_violations(
    cluster: Cluster, view: View[Any, Any], rows: Mapping[Any, Any], stored: Mapping[bytes, Any]
) -> Iterator[str]:
    """Checks that the rows that were read by key are the fold of the events of their keys.

    Args:
        stored: the values of the database by key.
    """
    yield from _differences("misfolded", cluster, view, {view.keys.encode(k): row for k, row in rows.items()}, stored)


def parked_rows(view: View[Any, Any], stored: Mapping[bytes, Any]) -> Iterator[str]:
    """The parked rows of a view, each with its reason: a fold of the App has failed."""
    for base in _buckets(view, stored):
        for key, parked in sorted(_parked(stored, base).items()):
            yield f"parked: row {key} of view {view.name}: {parked['error']}"


def _differences(
    what: str, cluster: Cluster, view: View[Any, Any], rows: Mapping[str, Any], stored: Mapping[bytes, Any]
) -> Iterator[str]:
    """Compares rows by encoded key with the fold of the events; parked ones are left out."""
    expected = {key: versions[-1] for key, versions in _history(cluster, view).items()}
    parked = {key for base in _buckets(view, stored) for key in _parked(stored, base)}
    for key in sorted((expected.keys() | rows.keys()) - parked):
        if expected.get(key) is not _STOPPED and expected.get(key) != rows.get(key):
            yield f"{what}: {view.name} {key}: {rows.get(key)!r}, not {expected.get(key)!r}"


def stale_reads(
    cluster: Cluster, view: View[Any, Any], reads: Sequence[WitnessedRead], *, is_monotonic: bool
) -> Iterator[str]:
    """Checks that no read saw less than its receipt, nor, where that is promised, less than an earlier read."""
    history, seen = _history(cluster, view), Counter[str]()
    for read in reads:
        rows = history.get(view.keys.encode(read.key), [None])
        least = max(read.version, seen[read.key] if is_monotonic else 0)
        versions = [version for version in range(least, len(rows)) if rows[version] in (read.row, _STOPPED)]
        if not versions:
            yield f"stale read: {view.name} {read.key} behind version {least}: {read.row!r}"
        else:
            seen[read.key] = versions[0]


def store_violations(cluster: Cluster, view: View[Any, Any], stored: Mapping[bytes, Any]) -> Iterator[str]:
    """Checks what Redis holds of the live generation: rows, lists and indexes of them, checksums and positions.

    Args:
        stored: the values of the database by key.
    """
    buckets, found = _buckets(view, stored), dict[str, Mapping[bytes, bytes]]()
    if not buckets:
        yield f"not live: {view.name}"
    for bucket, base in enumerate(buckets):
        rows = {key.removeprefix(base + b":"): one for key, one in stored.items() if key.startswith(base + b":")}
        yield from (f"in two buckets: {view.name} {key!r}" for key in rows if key.decode() in found)
        found |= {key.decode(): row for key, row in rows.items()}
        checkpoint = stored.get(base + b"@")
        if checkpoint is None:
            yield f"no checkpoint: {base.decode()}"
            continue
        parked = _parked(stored, base)
        for list_ in ("", *view.rows.indexes):
            entries = stored.get(base + b"#" + list_.encode())
            listed = sorted(entries.scores if entries else ())
            expected = sorted(_entry(view, list_, key, row) for key, row in rows.items())
            if listed != expected and not parked:
                yield f"mislisted: {base.decode()}#{list_} has {listed}, not {expected}"
        if not parked:
            checksum = sum(_digest(view, *row) for row in rows.items()) % (1 << 128)
            said = (int(checkpoint[b"checksum"], 16), int(checkpoint[b"rows"]))
            if said != (checksum, len(rows)):
                yield f"miscounted: {base.decode()} says {said}, and has {(checksum, len(rows))}"
        position = json.loads(checkpoint[b"position"])
        yield from _behind(cluster, view, position, bucket if view.stream_keyed else None, base.decode())
    decoded = {key: view.rows.decode(row) for key, row in found.items()}
    yield from _differences("misstored", cluster, view, decoded, stored)


def _buckets(view: View[Any, Any], stored: Mapping[bytes, Any]) -> list[bytes]:
    """What the keys of each bucket of the live generation begin with; empty if none is live."""
    registry: Mapping[bytes, bytes] = stored.get(b"view:" + view.name.encode(), {})
    live = registry.get(b"live:" + view.hash.encode(), b"").decode()
    count = json.loads(registry[b"g:" + live.encode()])["buckets"] if live else 0
    return [f"v:{{{view.name}:{live}:{bucket}}}".encode() for bucket in range(count)]


def _parked(stored: Mapping[bytes, Any], base: bytes) -> Mapping[str, Mapping[str, Any]]:
    """The parked rows of a bucket, by encoded key."""
    found: Mapping[str, Mapping[str, Any]] = json.loads(stored.get(base + b"@", {}).get(b"parked") or b"{}")
    return found


def _entry(view: View[Any, Any], index: str, key: bytes, row: Mapping[bytes, bytes]) -> bytes:
    """The member of a list of keys, or of an index, for a row."""
    if not index:
        return key
    return ordered(getattr(view.rows.decode(row), index)).encode().replace(b"\0", b"\0\x7f") + b"\0" + key


def _digest(view: View[Any, Any], key: bytes, row: Mapping[bytes, bytes]) -> int:
    parts = [key, *(row[name.encode()] for name in view.rows.names)]
    return int.from_bytes(blake2b(b"".join(b"%d:%b" % (len(p), p) for p in parts), digest_size=16).digest(), "big")


def _behind(
    cluster: Cluster, view: View[Any, Any], position: Mapping[str, Mapping[str, int]], own: int | None, where: str
) -> Iterator[str]:
    for category in view.categories:
        topic = cluster.topics[f"{category}.events"]
        for partition in topic.partitions if own is None else (topic.partitions[own],):
            committed, at = partition.committed(), position.get(topic.name, {}).get(str(partition.number), 0)
            if committed and not committed[-1].offset < at <= partition.end:
                yield f"misplaced: {where} is at {at} of {partition}, which ends at {partition.end}"


def _history(cluster: Cluster, view: View[Any, Any]) -> dict[str, list[Any]]:
    """By encoded key, the row after each event, from None before the first; of a stream's own, after each version."""
    rows: dict[str, list[Any]] = defaultdict(lambda: [None])
    for key, item in _items(cluster, view):
        row = rows[key][-1]
        if item is not None and row is not _STOPPED:
            try:
                row = _STOPPED if isinstance(item, ContractError) else view.evolve(row, item)
            except Exception:  # noqa: BLE001  # the App's own: the row is parked
                row = _STOPPED
        rows[key].append(row)
    return rows


def _items(cluster: Cluster, view: View[Any, Any]) -> Iterator[tuple[str, Any]]:
    """What is folded into which row; None = another event of a stream that has a row of its own."""
    types: dict[bytes, Any] = {cls.__leftfold__.type.encode(): cls for cls in view.events}
    for category in view.categories:
        for partition in cluster.topics[f"{category}.events"].partitions:
            for record in partition.committed():
                cls = types.get(dict(record.headers or ()).get("ce_type") or b"")
                if record.key == b"@":
                    continue
                if cls is None and view.stream_keyed:
                    yield view.keys.encode((record.key or b"").decode()), None
                elif cls is not None:
                    event = cls.model_validate_json(record.value or b"")
                    yield from (
                        (key, item) for key, item in view.touches(event, (record.key or b"").decode()) if key != NO_ROW
                    )
