"""State topics of deciders and processes: what commands cost there, and having all states folded again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, TopicPartition

from leftfold.engine.processing.recovery import TaskSpec, task_for
from leftfold.engine.processing.stream_state import ChangelogCheckpoint
from leftfold.errors import ConfigurationError
from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.errors import QuietLog, translated
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.hanging_transactions import last_mark
from leftfold.kafka.worker.log_identity import cut_commands
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.position import Position
from leftfold.ports.protocols import LogReader

__all__ = ["Where", "costs", "folded", "forget_states"]

Where: TypeAlias = Literal["kept", "start", "end"]


def forget_states(
    app: App, name: str, settings: KafkaSettings, open_log: Callable[[], LogReader], where: Where = "kept"
) -> Position:
    """Deletes the state topics of every version and makes this one's again; the first commands that are taken then.

    What events do not tell is forgotten with them: which commands were refused, and digests and origins of others.

    Args:
        open_log: reads the whole log that states are folded from. where: workers go on where they were, at the start
            of the commands that are there, or behind all of them.

    Raises:
        ConfigurationError: workers are at work, or where they were is beyond the end of the commands.
        LogGap: the log has lost its beginning, and no archive has it. InfrastructureError: no broker answers.
    """
    task = task_for(app, name)
    group, commands = names.group(app.name, name), names.commands(name)
    with Groups(settings) as groups:
        if at_work := groups.owners(name).get(group, 0):
            raise ConfigurationError(f"{name} has {at_work} workers at work; stop what runs them, then say it again")
        _check_whole(open_log, task.log, groups.partitions(task.log))
        offsets = {
            "kept": lambda: _kept(groups, group, task, settings),
            "start": lambda: groups.starts([commands]),
            "end": lambda: groups.ends([commands]),
        }[where]()
        groups.set(group, offsets)
        for topic in _states(groups, name):
            groups.delete(topic)
    ensure(app, settings)
    return offsets


def _states(groups: Groups, name: str) -> list[str]:
    return [topic for topic in groups.topics() if topic.startswith(f"{name}.state.v")]


def _check_whole(open_log: Callable[[], LogReader], topic: str, partitions: int) -> None:
    log = open_log()
    try:
        log.check(Position({topic: dict.fromkeys(range(partitions), 0)}))
    finally:
        log.close()


def costs(settings: KafkaSettings, topic: str, partitions: int) -> tuple[int, int]:
    """What the `@` records of a state topic say: how many bytes of state a command has lately cost, in the partition
    where that is most, and how many answers ever left a key's memory before their time.

    Raises:
        InfrastructureError: no broker answers.
    """
    checkpoints = _marks(settings, topic, partitions).values()
    return max((checkpoint.per_command for checkpoint in checkpoints), default=0), sum(
        checkpoint.answers_dropped for checkpoint in checkpoints
    )


def folded(settings: KafkaSettings, topic: str, partitions: int) -> dict[int, int]:
    """Up to which offset of the log each partition of a state topic was made; one that says nothing is left out.

    Raises:
        InfrastructureError: no broker answers.
    """
    return {partition: checkpoint.events for partition, checkpoint in _marks(settings, topic, partitions).items()}


def _marks(settings: KafkaSettings, topic: str, partitions: int) -> dict[int, ChangelogCheckpoint]:
    if not partitions:
        return {}
    try:
        with _stable(settings) as consumer:
            raw = {p: last_mark(consumer, TopicPartition(topic, p)) for p in range(partitions)}
    except KafkaException as error:
        raise translated(error, doing=f"reading {topic}") from error
    return {partition: ChangelogCheckpoint.decode(checkpoint) for partition, checkpoint in raw.items() if checkpoint}


@contextmanager
def _stable(settings: KafkaSettings) -> Iterator[Consumer]:
    """A consumer that reads what is committed, and says at once when there is no more."""
    config: dict[str, Any] = {
        **settings.librdkafka(),
        "group.id": f"leftfold.reader.{uuid4()}",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer(config, logger=QuietLog("states"))
    try:
        yield consumer
    finally:
        consumer.close()


def _kept(groups: Groups, group: str, task: TaskSpec, settings: KafkaSettings) -> Position:
    """Where workers would go on: what is committed, or what the states know of this same topic."""
    commands = names.commands(task.name)
    ids = groups.identities([commands])
    committed, ends = groups.committed(group, [commands]), groups.ends([commands]).offsets[commands]
    states = _states(groups, task.name)
    found: dict[int, int] = {}
    with _stable(settings) as consumer:
        for partition, end in ends.items():
            raw = [last_mark(consumer, TopicPartition(topic, partition)) for topic in states]
            checkpoints = [ChangelogCheckpoint.decode(checkpoint) for checkpoint in raw if checkpoint]
            here = [checkpoint.commands for checkpoint in checkpoints if checkpoint.is_of(commands, ids)]
            if checkpoints and not here and not task.adopts:
                raise ConfigurationError(
                    f"the {commands} that is there is not the one that {task.name} took its inputs from; say whether "
                    f"it takes them again or only folds them: --commands start or --commands end"
                )
            at = committed.next_offset(commands, partition) if here or not checkpoints else 0
            found[partition] = max([at, *here])
            if found[partition] > end:
                raise cut_commands(task.name, partition, found[partition], end)
    return Position({commands: found})
