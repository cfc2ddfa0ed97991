"""Checks the rows of views from the topics and the bytes in Redis alone, with no code of the engine or its adapters."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from leftfold.model.keys import NO_ROW
from leftfold.model.view import View
from leftfold.testing.simulation.kafka.brokers import Cluster

__all__ = ["WitnessedRead", "fold_violations", "stale_reads", "store_violations"]


@dataclass(frozen=True)
class WitnessedRead:
    """A read of a row by a stream's key: after a receipt, or relative to an earlier read (version 0)."""

    view: View[Any, Any]
    key: str
    version: int
    row: Any


def fold_violations(cluster: Cluster, view: View[Any, Any], rows: Mapping[Any, Any]) -> Iterator[str]:
    """Checks that the rows that were read by key are the fold of the events of their keys."""
    expected = {view.keys.decode(key): row for key, row in _folded(cluster, view).items()}
    for key in sorted(expected.keys() | rows.keys(), key=str):
        if expected.get(key) != rows.get(key):
            yield f"misfolded: {view.name} {key}: {rows.get(key)!r}, not {expected.get(key)!r}"


def stale_reads(
    cluster: Cluster, view: View[Any, Any], reads: Sequence[WitnessedRead], *, is_monotonic: bool
) -> Iterator[str]:
    """Checks that no read saw less than its receipt, nor, where that is promised, less than an earlier read."""
    history, seen = _history(cluster, view), Counter[str]()
    for read in reads:
        rows = history.get(read.key, [None])
        least = max(read.version, seen[read.key] if is_monotonic else 0)
        versions = [version for version in range(least, len(rows)) if rows[version] == read.row]
        if not versions:
            yield f"stale read: {view.name} {read.key} behind version {least}: {read.row!r}"
        else:
            seen[read.key] = versions[0]


def store_violations(cluster: Cluster, view: View[Any, Any], stored: Mapping[bytes, Any]) -> Iterator[str]:
    """Checks what Redis holds of the live generation: rows, lists and indexes of them, checksums and positions.

    Args:
        stored: the values of the database by key.
    """
    registry: Mapping[bytes, bytes] = stored.get(b"view:" + view.name.encode(), {})
    live = registry.get(b"live:" + view.hash.encode(), b"").decode()
    if not live:
        yield f"not live: {view.name}"
        return
    found: dict[str, Mapping[bytes, bytes]] = {}
    for bucket in range(json.loads(registry[b"g:" + live.encode()])["buckets"]):
        base = f"v:{{{view.name}:{live}:{bucket}}}".encode()
        rows = {key.removeprefix(base + b":"): one for key, one in stored.items() if key.startswith(base + b":")}
        yield from (f"in two buckets: {view.name} {key!r}" for key in rows if key.decode() in found)
        found |= {key.decode(): row for key, row in rows.items()}
        checkpoint = stored.get(base + b"@")
        if checkpoint is None:
            yield f"no checkpoint: {base.decode()}"
            continue
        for list_ in ("", *view.rows.indexes):
            entries = stored.get(base + b"#" + list_.encode())
            listed = sorted(member.rpartition(b"\0")[2] for member in (entries.scores if entries else ()))
            if listed != sorted(rows):
                yield f"mislisted: {base.decode()}#{list_} has {listed}, not {sorted(rows)}"
        if not json.loads(checkpoint.get(b"parked") or b"{}"):
            checksum = sum(_digest(view, *row) for row in rows.items()) % (1 << 128)
            said = (int(checkpoint[b"checksum"], 16), int(checkpoint[b"rows"]))
            if said != (checksum, len(rows)):
                yield f"miscounted: {base.decode()} says {said}, and has {(checksum, len(rows))}"
        position = json.loads(checkpoint[b"position"])
        yield from _behind(cluster, view, position, bucket if view.stream_keyed else None, base.decode())
    decoded = {key: view.rows.decode(row) for key, row in found.items()}
    expected = _folded(cluster, view)
    for key in sorted(expected.keys() | decoded.keys()):
        if expected.get(key) != decoded.get(key):
            yield f"misstored: {view.name} {key}: {decoded.get(key)!r}, not {expected.get(key)!r}"


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


def _folded(cluster: Cluster, view: View[Any, Any]) -> dict[str, Any]:
    """The rows that the events give, by encoded key."""
    return {key: rows[-1] for key, rows in _history(cluster, view).items() if rows[-1] is not None}


def _history(cluster: Cluster, view: View[Any, Any]) -> dict[str, list[Any]]:
    """By encoded key, the row after each event, from None before the first."""
    rows: dict[str, list[Any]] = defaultdict(lambda: [None])
    for key, item in _items(cluster, view):
        rows[key].append(view.evolve_row(rows[key][-1], item))
    return rows


def _items(cluster: Cluster, view: View[Any, Any]) -> Iterator[tuple[str, Any]]:
    types: dict[bytes, Any] = {cls.__leftfold__.type.encode(): cls for cls in view.events}
    for category in view.categories:
        for partition in cluster.topics[f"{category}.events"].partitions:
            for record in partition.committed():
                cls = types.get(dict(record.headers or ()).get("ce_type") or b"")
                if record.key != b"@" and cls is not None:
                    event = cls.model_validate_json(record.value or b"")
                    yield from (
                        (key, item) for key, item in view.touches(event, (record.key or b"").decode()) if key != NO_ROW
                    )
