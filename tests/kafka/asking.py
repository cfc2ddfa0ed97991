"""A process that asks a broker every question of a Cluster in endless loops; it ends when its input does.

`python -m tests.kafka.asking ADDRESS TOPIC` prints how often each question was answered and refused; with `newer`
behind it, it asks for groups by the calls that Leftfold avoids instead.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from leftfold.errors import LeftfoldError
from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.settings import KafkaSettings

Question = Callable[[Groups], object]


def questions(topic: str) -> dict[str, Question]:
    """Every question by name; each is asked by a thread of its own."""
    category = topic.removesuffix(".events")
    return {
        "brokers": lambda g: g.brokers(),
        "partitions": lambda g: g.partitions(topic),
        "topics": lambda g: g.topics(),
        "ends": lambda g: g.ends([topic]),
        "starts": lambda g: g.starts([topic]),
        "starts_at": lambda g: g.starts_at(topic, 0),
        "identity": lambda g: g.identity(topic),
        "configs": lambda g: g.configs([topic]),
        "set_configs": lambda g: g.set_configs(topic, {"retention.ms": "-1"}),
        "create": lambda g: g.create(topic, 1, 1, {}),
        "delete_records": lambda g: g.delete_records(topic, {0: 0}),
        "owners": lambda g: g.owners(category),
        "listeners": lambda g: g.listeners(topic),
        "committed": lambda g: g.committed(f"leftfold.model.app.{category}.router", [topic]),
    }


def _newer(settings: KafkaSettings) -> None:
    admin = AdminClient(settings.librdkafka() | {"log_level": 0})
    groups = [group.group_id for group in admin.list_consumer_groups(request_timeout=1.0).result().valid]
    for future in admin.describe_consumer_groups(groups or ["leftfold.app.any"], request_timeout=1.0).values():
        future.result()


def _ask(settings: KafkaSettings, question: Question, ended: threading.Event, counts: dict[str, int]) -> None:
    with Groups(settings) as groups:
        while not ended.is_set():
            try:
                question(groups)
            except (LeftfoldError, KafkaException):
                counts["refused"] += 1
                ended.wait(0.02)
            else:
                counts["answered"] += 1


def main(address: str, topic: str, *newer: str) -> None:
    """Asks until the input ends."""
    settings, ended = KafkaSettings(bootstrap_servers=address, request_timeout=1.0), threading.Event()
    asked: dict[str, Question] = {"newer": lambda _: _newer(settings)} if newer else questions(topic)
    counts = {name: {"answered": 0, "refused": 0} for name in asked}
    threads = [threading.Thread(target=_ask, args=(settings, q, ended, counts[n])) for n, q in asked.items()]
    for thread in threads:
        thread.start()
    for line in sys.stdin:
        found: Any = counts
        print(json.dumps(found), flush=True) if line.strip() else None
    ended.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
