"""What the parts of a run record themselves, read from its `/metrics`: rates, durations, restarts and memory."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any

from leftfold.runtime.connect import extras
from leftfold.runtime.telemetry_export import check_address

__all__ = ["Histogram", "Rates", "Scrape", "quantile"]

_SCRAPE_SECONDS = 5.0
_CONSUMED, _SECONDS = "messaging_client_consumed_messages", "messaging_process_duration_seconds"
_ROTATIONS, _RESTARTS, _MEMORY = "leftfold_producer_rotations", "leftfold_restarts", "process_resident_memory_bytes"
_SIZES = "leftfold_batch_size"
_READ = frozenset({_CONSUMED, _SECONDS, _ROTATIONS, _RESTARTS, _MEMORY, _SIZES})
Member = tuple[str, str]
"""The kind and the name of a member."""


@dataclass(frozen=True)
class Histogram:
    """The cumulative counts of a Prometheus histogram by upper bound."""

    buckets: Mapping[float, float] = field(default_factory=dict)

    def since(self, before: Histogram) -> Histogram:
        """What was counted after an earlier scrape; everything when the process has been restarted meanwhile."""
        grown = {bound: count - before.buckets.get(bound, 0.0) for bound, count in self.buckets.items()}
        return self if any(count < 0 for count in grown.values()) else Histogram(grown)

    def plus(self, other: Histogram) -> Histogram:
        """The histogram of both."""
        bounds = {*self.buckets, *other.buckets}
        return Histogram({one: self.buckets.get(one, 0.0) + other.buckets.get(one, 0.0) for one in bounds})


def quantile(histogram: Histogram, share: float) -> float | None:
    """A quantile in seconds, interpolated within its bucket as Prometheus does; None = nothing was counted."""
    bounds = sorted(histogram.buckets)
    if not bounds or not histogram.buckets[bounds[-1]]:
        return None
    wanted, low, below = share * histogram.buckets[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        count = histogram.buckets[bound]
        if count >= wanted:
            within = (wanted - below) / (count - below) if count > below else 0.0
            return low if math.isinf(bound) else low + (bound - low) * within
        low, below = bound, count
    return None


@dataclass(frozen=True)
class Scrape:
    """The numbers that workers record themselves, by member and part: records processed, and how long a batch took.

    Args:
        batches, batched: how many batches were taken, and the records in them.
        rotations: replaced producers, by member. restarts, memory: of each part, memory in bytes.
    """

    processed: Mapping[Member, Mapping[str, float]]
    seconds: Mapping[Member, Mapping[str, Histogram]]
    rotations: Mapping[Member, float] = field(default_factory=dict)
    restarts: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    batches: Mapping[Member, Mapping[str, float]] = field(default_factory=dict)
    batched: Mapping[Member, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, address: str) -> Scrape | None:
        """The answer of `/metrics` at an address; None = there is none.

        Raises:
            ConfigurationError: `leftfold[telemetry]` is not installed.
        """
        connection = HTTPConnection(*check_address(address), timeout=_SCRAPE_SECONDS)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()
        with extras():
            from prometheus_client.parser import text_string_to_metric_families
        try:
            return cls.of(text_string_to_metric_families(text)) if answer.status == HTTPStatus.OK else None
        except (LookupError, ValueError):  # something else answers there
            return None

    @classmethod
    def of(cls, families: Iterable[Any]) -> Scrape:
        """The numbers in the families of a scrape."""
        found: dict[str, dict[Member, Counter[str]]] = {
            name: defaultdict(Counter) for name in (f"{_CONSUMED}_total", f"{_SIZES}_count", f"{_SIZES}_sum")
        }
        counts: dict[Member, dict[str, Counter[float]]] = defaultdict(lambda: defaultdict(Counter))
        rotations: Counter[Member] = Counter()
        parts: dict[str, dict[str, float]] = {_RESTARTS: {}, _MEMORY: {}}
        for family in families:
            for sample in family.samples if family.name in _READ else ():
                member = sample.labels.get("leftfold_kind", ""), sample.labels.get("leftfold_name", "")
                part = sample.labels.get("leftfold_part", "")
                if sample.name in found:
                    found[sample.name][member][part] += sample.value
                elif sample.name == f"{_SECONDS}_bucket":
                    counts[member][part][float(sample.labels["le"])] += sample.value
                elif family.name == _ROTATIONS:
                    rotations[member] += sample.value
                elif family.name in parts:
                    parts[family.name][part] = sample.value
        seconds = {m: {part: Histogram(one) for part, one in taken.items()} for m, taken in counts.items()}
        processed, batches, batched = found.values()
        return cls(processed, seconds, rotations, parts[_RESTARTS], parts[_MEMORY], batches, batched)

    @property
    def members(self) -> list[Member]:
        """Every member that has recorded something."""
        return sorted({*self.processed, *self.seconds})

    def lately(self, member: Member, before: Scrape) -> Histogram:
        """How long the batches of a member took since an earlier scrape; all of them, if that has nothing of it."""
        now, then = self.seconds.get(member, {}), before.seconds.get(member, {})
        found = Histogram()
        for part, taken in now.items():
            if not then or part in then:
                found = found.plus(taken.since(then.get(part, Histogram())))
        return found


def _grown(now: Mapping[str, float], then: Mapping[str, float]) -> float | None:
    """How far the counts of a member's parts have grown since an earlier scrape; None = no part was in both.

    A part that was not in the earlier one counts from the next scrape on: it may have missed that one only.
    """
    both = [(now[part], then[part]) for part in now if part in then]
    return sum(count - since if count >= since else count for count, since in both) if both else None


class Rates:
    """Rates and durations between two looks at a run."""

    def __init__(self) -> None:
        self._at, self._done, self._scrape = 0.0, dict[Member, float](), Scrape({}, {})

    def added(self, rows: Sequence[dict[str, Any]], scrape: Scrape | None, now: float) -> None:
        """Adds `rate` (records per second), `p50`, `p99` (seconds), `batches`, `per_batch` (records); None = unknown.

        Where no metrics are served, rates count offsets, of which transactions use some too.
        """
        done = {(row["kind"], row["name"]): float(row["done"]) for row in rows if row.get("done") is not None}
        before, passed = self._scrape, now - self._at
        for row in rows:
            member = row["kind"], row["name"]
            batches = batched = None
            if scrape:
                grown, batches, batched = (
                    _grown(counted.get(member, {}), since.get(member, {}))
                    for counted, since in (
                        (scrape.processed, before.processed),
                        (scrape.batches, before.batches),
                        (scrape.batched, before.batched),
                    )
                )
                lately = scrape.lately(member, before)
            else:
                grown, lately = self._further(member, done), Histogram()
            row["batches"] = None if batches is None else round(batches)
            row["per_batch"] = round(batched / batches, 1) if batches and batched is not None else None
            row["rate"] = round(grown / passed, 1) if grown is not None and self._at and passed > 0 else None
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                found = quantile(lately, share)
                row[name] = None if found is None else round(found, 4)
        self._at, self._done, self._scrape = now, done, scrape or Scrape({}, {})

    def _further(self, member: Member, done: Mapping[Member, float]) -> float | None:
        """Offsets that a member has done since the last look; None = unknown, or it was set back."""
        count, since = done.get(member), self._done.get(member)
        return count - since if count is not None and since is not None and count >= since else None
