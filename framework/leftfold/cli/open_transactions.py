"""Finds transactions that stay open: whoever reads committed records stands still in front of one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from leftfold.app import App
from leftfold.cli.console import amount
from leftfold.connection import ring
from leftfold.position import Place
from leftfold.errors import InfrastructureError

__all__ = ["look_for_open"]

_LONGEST, _PAUSE, _NAMED = 25.0, 0.5, 5
"""Seconds after which a transaction should have ended: it times out after 10, and brokers look every 10."""


def look_for_open(app: App, settings: Any, seconds: float = _LONGEST) -> str:
    """Looks at every topic that an App owns; at once where nothing is open.

    Raises:
        InfrastructureError: a transaction was open all the while, for so many seconds.
    """
    with ring("leftfold.kafka.cluster").Cluster(settings) as cluster:
        there = cluster.topics()
        topics = [topic.name for topic in ring("leftfold.kafka.topics").topics_of(app) if topic.name in there]
        found = _stuck(cluster, settings, topics, seconds)
    if not found:
        return f"none stays open in {amount(len(topics), 'topic')}"
    first, more = found[0], len(found) - _NAMED
    places = ", ".join(map(str, found[:_NAMED])) + (f" and {more} more" if more > 0 else "")
    raise InfrastructureError(
        f"a transaction has been open for {seconds:g} s at {places}, and nobody reads what is behind it. Workers end "
        f"those on their own states when they start again: leftfold run. Else Kafka's own tool aborts it, even what "
        f"was decided to be committed: kafka-transactions.sh --bootstrap-server {settings.bootstrap_servers} abort "
        f"--topic {first.topic} --partition {first.partition} --start-offset {first.offset}"
    )


def _stuck(cluster: Any, settings: Any, topics: Iterable[str], seconds: float) -> list[Place]:
    """Where something was open all the while: a worker at work opens and ends one transaction after another."""
    wanted = list(topics)
    with closing(ring("leftfold.kafka.bulk").KafkaBulkLog(settings)) as log:
        found = _open(cluster, log, wanted)
        deadline = time.monotonic() + seconds
        while found and time.monotonic() < deadline:
            time.sleep(_PAUSE)
            found &= _open(cluster, log, {place.topic for place in found})
    return sorted(found)


def _open(cluster: Any, log: Any, topics: Iterable[str]) -> set[Place]:
    """Where nothing is stable from there on; stable ends are asked for first, so that they may only be too low."""
    stable = log.stable_ends(topics).offsets
    ends = cluster.ends(topics).offsets
    return {
        Place(topic, partition, offset)
        for topic, offsets in stable.items()
        for partition, offset in offsets.items()
        if offset < ends[topic][partition]
    }
