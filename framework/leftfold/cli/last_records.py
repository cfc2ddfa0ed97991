"""The last records of a topic, for people who look at it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from leftfold.connection import ring
from leftfold.ports import RawRecord
from leftfold.position import Position

__all__ = ["last_records"]

_BATCH, _WAIT, _PATIENCE = 500, 0.1, 5.0


def last_records(cluster: Any, settings: Any, topic: str, most: int) -> Iterator[RawRecord]:
    """What is committed among the last `most` offsets of each partition; nothing where there is no such topic.

    What an open transaction hides is waited for for five seconds only.
    """
    if topic not in cluster.partition_counts([topic]):
        return
    starts, ends = cluster.starts([topic]), cluster.ends([topic])
    begin = {p: max(starts.next_offset(topic, p), end - most) for p, end in ends.offsets[topic].items()}
    with closing(ring("leftfold.kafka.reader").KafkaLogReader(settings)) as reader:
        reader.seek(Position({topic: begin}))
        heard = time.monotonic()
        while not reader.position().covers(ends) and time.monotonic() - heard < _PATIENCE:
            if records := reader.poll(_BATCH, _WAIT):
                heard = time.monotonic()
                yield from records
