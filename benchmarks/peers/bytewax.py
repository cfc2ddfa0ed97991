"""Bytewax: `stateful_map` behind its Kafka source, with recovery, which keeps the state in SQLite every 10 s.

Run with the Python of an environment of its own, and with -P because this file has the library's name:
bytewax.py BROKERS TOPIC EVENTS FOLDER NAME. The clock stops when the last sum comes out, before the last snapshot.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSource, KafkaSourceMessage
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main


class Sums(DynamicSink[tuple[str, int]], StatelessSinkPartition[tuple[str, int]]):  # type: ignore[misc]  # not installed here
    """Takes every new sum and drops it, and knows the time from the first event to the last."""

    def __init__(self) -> None:
        self.events = self.keys = 0
        self.began = self.ended = 0.0

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Sums:
        """The only partition."""
        return self

    def write_batch(self, items: list[tuple[str, int]]) -> None:
        """Counts."""
        self.events += len(items)
        self.ended = time.perf_counter()

    def read(self, messages: list[KafkaSourceMessage[bytes, bytes]]) -> list[tuple[str, int]]:
        """Keys and amounts of a batch."""
        if messages and not self.began:
            self.began = time.perf_counter()
        return [(message.key.decode(), orjson.loads(message.value)["cents"]) for message in messages]

    def add(self, total: int | None, cents: int) -> tuple[int, int]:
        """The state after one more, and what the sink gets."""
        if total is None:
            self.keys += 1
            return cents, cents
        return total + cents, total + cents


def main(brokers: str, topic: str, folder: str) -> None:
    """Reads the topic from its start to its end."""
    source, done = KafkaSource([brokers], [topic], tail=False, add_config={"enable.partition.eof": "true"}), Sums()
    flow = Dataflow("sums")
    amounts = op.flat_map_batch("read", op.input("topic", flow, source), done.read)
    op.output("out", op.stateful_map("sum", amounts, done.add), done)
    Path(folder).mkdir(exist_ok=True)
    init_db_dir(folder, 1)
    cli_main(flow, recovery_config=RecoveryConfig(folder))
    print(json.dumps({"events": done.events, "keys": done.keys, "seconds": done.ended - done.began}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[4])
