"""Quix Streams: `apply(..., stateful=True)` over its RocksDB state, with a changelog topic and a checkpoint every 5 s.

Run with the Python of an environment of its own: quix.py BROKERS TOPIC EVENTS FOLDER NAME. It is given its default
guarantee, at least once: a crash folds up to a checkpoint's worth of events again, and exactly-once is slower.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from quixstreams import Application, State


class Sum:
    """The sum per message key, and the time from the first event to the last."""

    def __init__(self) -> None:
        self.events = self.keys = 0
        self.began = self.ended = 0.0

    def add(self, value: dict[str, Any], state: State) -> int:
        """Folds one event."""
        if not self.events:
            self.began = time.perf_counter()
        before = state.get("cents")
        if before is None:
            self.keys += 1
        total: int = value["cents"] + (before or 0)
        state.set("cents", total)
        self.events += 1
        self.ended = time.perf_counter()
        return total


def main(brokers: str, topic: str, events: int, folder: str, name: str) -> None:
    """Reads the topic from its start until it has folded so many events."""
    app = Application(brokers, consumer_group=name, auto_offset_reset="earliest", state_dir=folder, loglevel="WARNING")
    done = Sum()
    frame = app.dataframe(app.topic(topic, key_deserializer="str", value_deserializer="json"))
    frame.apply(done.add, stateful=True)
    app.run(count=events, timeout=60, collect=False)
    print(json.dumps({"events": done.events, "keys": done.keys, "seconds": done.ended - done.began}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
