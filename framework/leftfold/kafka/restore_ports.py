"""What restorations read with, and what looks after open transactions meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer

from leftfold import names
from leftfold.app import App
from leftfold.engine.duty import Duty
from leftfold.kafka.hanging import Hanging
from leftfold.ports import LogReader

__all__ = ["TRANSACTION_SECONDS", "RestorePorts"]

TRANSACTION_SECONDS = 10.0
"""After how long a broker ends a worker's open transaction."""


@dataclass(frozen=True)
class RestorePorts:
    """What a restoration reads with: the member's own consumer, two that are no members and see stable and uncommitted
    ends, and a log reader. `identities` are the ids of the topics concerned.
    """

    member: Consumer
    stable: Consumer
    uncommitted: Consumer
    open_log: Callable[[], LogReader]
    topics: Callable[[], Mapping[str, int]]
    producer: Callable[[str], Producer]
    identities: Callable[[Duty], Mapping[str, str]]

    def hanging(self, app: App, duty: Duty) -> Hanging:
        """What looks after open transactions on the topics of a category."""
        name, topics = duty.name, self.topics()
        mine = names.state(name, duty.version)
        states = (mine, *(t for t in topics if t != mine and t.startswith(f"{name}.state.v")))
        return Hanging(
            self.stable,
            self.uncommitted,
            self.producer,
            names.commands(name),
            states,
            duty.writes,
            app.partitions,
            {topic: count for topic, count in topics.items() if topic.endswith(".commands")},
            f"/{app.name}/{name}".encode(),
        )
