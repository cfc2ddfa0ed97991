"""Faust: an agent that adds to a Table in memory, with its changelog topic, on uvloop and orjson.

Run with the Python of an environment of its own, and with -P because this file has the library's name:
faust.py BROKERS TOPIC EVENTS FOLDER NAME. It reads uncommitted records, as it does unless `exactly_once` is on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol

os.environ["FAUST_LOOP"] = "uvloop"

import faust

PARTITIONS = 12


class Stream(Protocol):
    """What is used of a stream."""

    def items(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Keys and values."""


def main(brokers: str, topic: str, events: int, folder: str, name: str) -> None:
    """Reads the topic from its start, and ends this process when it has folded so many events."""
    app = faust.App(
        name,
        broker="kafka://" + brokers,
        store="memory://",
        datadir=folder,
        topic_partitions=PARTITIONS,
        web_enabled=False,
        stream_wait_empty=False,
        consumer_auto_offset_reset="earliest",
    )
    sums = app.Table("sums", default=int, partitions=PARTITIONS)

    async def add(stream: Stream) -> None:
        count, began = 0, 0.0
        async for key, value in stream.items():
            if not count:
                began = time.perf_counter()
            sums[key] += value["cents"]
            count += 1
            if count == events:
                _end(events, len(sums), time.perf_counter() - began)

    app.agent(app.topic(topic, key_type=str, key_serializer="raw", value_serializer="json"))(add)
    faust.Worker(app, loglevel="WARNING").execute_from_commandline()


def _end(events: int, keys: int, seconds: float) -> None:
    """Says it on the real standard output, which Faust has replaced, and ends at once: its own way takes seconds."""
    reported = json.dumps({"events": events, "keys": keys, "seconds": seconds})
    os.write(1, reported.encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
