"""`leftfold log skip`: routers that pass over what their topics have lost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leftfold.cli.options import AppOption, JsonOption, KafkaOption, examples

__all__ = ["EXAMPLES", "skip"]

EXAMPLES = examples(
    "leftfold log skip newsletter          asks first, naming what will never reach the process",
    "leftfold log skip newsletter --yes --json",
)


def skip(
    name: Annotated[str, typer.Argument(metavar="PROCESS", help="The process's name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    app: AppOption = "",
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have the routers of a process begin where topics begin now, wherever they stand before that.

    A router that finds its next events trimmed does not go on: they would never reach the process. Where that is as it
    should be, since the process is younger than they are, this says so. Stop its routers first.
    """
    from leftfold.cli.agreeing import agreed
    from leftfold.cli.console import emit, note
    from leftfold.cli.project import load_app
    from leftfold.cli.timing import process_of
    from leftfold.connection import kafka_settings, ring
    from leftfold.names import events
    from leftfold.position import Position

    whole = load_app(app, having=[name])
    process = process_of(whole, name)
    topics = [events(category) for category in process.categories]
    with ring("leftfold.kafka.groups").Groups(kafka_settings(kafka)) as groups:
        lost = _lost(groups, whole.name, name, topics)
        for topic, partition, start, end in lost:
            note(f"{topic}[{partition}]: offsets {start} to {end - 1} are gone")
        if lost:
            agreed(f"these events will never reach the process; have the routers of {name} pass over them?", yes=yes)
            _check_idle(groups, whole.name, name)
            groups.move(whole.name, name, Position.union(Position.at(topic, p, end) for topic, p, _, end in lost))
    if as_json:
        for topic, partition, start, end in lost:
            emit({"process": name, "topic": topic, "partition": partition, "from": start, "to": end})
    elif not lost:
        note(f"nothing is gone that routers of {name} should read")


def _check_idle(groups: Any, app: str, process: str) -> None:
    from leftfold.cli.console import amount
    from leftfold.errors import InfrastructureError
    from leftfold.names import group

    router = f"{process}.router"
    at_work = groups.owners(router).get(group(app, router), 0)
    if at_work:
        raise InfrastructureError(
            f"process {process} has {amount(at_work, 'router')} at work; stop what runs them, then say it again"
        )


def _lost(groups: Any, app: str, process: str, topics: list[str]) -> list[tuple[str, int, int, int]]:
    """What topics have lost behind the place of the routers: topic, partition, and the offsets from, to."""
    from leftfold.engine.hole import unreachable
    from leftfold.names import group

    there = [topic for topic in topics if topic in groups.topics()]
    at = groups.committed(group(app, f"{process}.router"), there)
    return [(gone.topic, gone.partition, gone.start, gone.end) for gone in unreachable(groups.starts(there), at)]
