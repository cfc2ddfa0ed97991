"""Looks at the reactions of an App: who acts, how far behind they are, and what is parked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leftfold import names
from leftfold.app import App
from leftfold.connection import kafka_settings, ring
from leftfold.position import Position
from leftfold.reaction import Reaction

__all__ = ["survey_reactions"]

Row = dict[str, Any]


def survey_reactions(app: App, kafka: str | None, problems: list[str]) -> Iterator[Row]:
    """A row of `status` for each; what is to be done about them goes to `problems`.

    Raises:
        InfrastructureError: no broker answers.
    """
    settings = kafka_settings(kafka)
    with ring("leftfold.kafka.groups").Groups(settings) as groups:
        topics: dict[str, int] = groups.topics()
        for reaction in app.reactions:
            name, group = reaction.name, names.reacting(app.name, reaction.name)
            running = groups.owners(f"{name}.reaction").get(group, 0)
            if not running:
                problems.append(f"nobody acts for reaction {name}; start: leftfold run {name}")
            row: Row = {"kind": "reaction", "name": name, "events": ", ".join(reaction.categories), "running": running}
            row |= {"lag": None, "parked": 0}
            if names.dead(name) in topics and names.begun(name) in topics:
                row["lag"] = _lag(groups, reaction, group, topics)
                row["parked"] = ring("leftfold.kafka.parked").ParkedEvents(name, settings).count()
            if row["parked"]:
                problems.append(f"reaction {name} has parked {row['parked']:,}; see: leftfold reactions parked {name}")
            yield row


def _lag(groups: Any, reaction: Reaction[Any], group: str, topics: dict[str, int]) -> int | None:
    """How many offsets lie behind what is done; None = it has not begun."""
    found = [names.events(category) for category in reaction.categories if names.events(category) in topics]
    ends: Position = groups.ends(found)
    done: Position = groups.committed(group, found)
    return ends.ahead_of(done) if done.offsets else None
