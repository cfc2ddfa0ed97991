"""Administers the state topics of deciders and processes: cost of commands, and deletion for a rebuild."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Literal, TypeAlias

from confluent_kafka import Consumer, TopicPartition

from leftfold.engine.log_gaps import beginning
from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint
from leftfold.engine.processing.worker_tasks import TaskSpec, task_for
from leftfold.errors import ConfigurationError
from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.errors import QuietLog
from leftfold.kafka.log_reader import KafkaLogReader, reader_config
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.hanging_transactions import last_mark
from leftfold.kafka.worker.log_identity import cut_commands
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.position import Position
from leftfold.ports.bulk import read_to
from leftfold.ports.protocols import LogReader

__all__ = ["Where", "forget_states", "last_checkpoints"]

Where: TypeAlias = Literal["kept", "start", "end"]


def forget_states(
    app: App, name: str, settings: KafkaSettings, open_log: Callable[[], LogReader], where: Where = "kept"
) -> Position:
    """Deletes the state topics of all versions and recreates this version's; returns the next command offsets.

    Information that is not in the events is lost: which commands were refused, and the digests and origins of others.

    Args:
        open_log: opens the log that states are folded from. where: workers continue at their committed offsets
            ("kept"), at the first command of the topic ("start"), or after the last one ("end").

    Raises:
        ConfigurationError: workers are running, or their offset is beyond the end of the commands.
        LogGap: the log has lost its beginning, and no archive has it. InfrastructureError: no broker answers.
    """
    task = task_for(app, name)
    group, commands = names.group(app.name, name), names.commands(name)
    with Groups(settings) as groups:
        if at_work := groups.groups().get(group, 0):
            raise ConfigurationError(f"{name} has {at_work} workers at work; stop what runs them, then say it again")
        with closing(open_log()) as log:
            log.check(beginning({task.log: groups.partitions(task.log)}))
        offsets = {
            "kept": lambda: _current_offsets(groups, group, task, settings),
            "start": lambda: groups.starts([commands]),
            "end": lambda: groups.ends([commands]),
        }[where]()
        groups.set(group, offsets)
        # A killed rebuild is typed again, and the states that workers wrote last have the offset of the commands.
        present = names.state(name, task.version)
        for topic in sorted(_states(groups, name), key=lambda topic: (topic == present, int(topic.rpartition("v")[2]))):
            groups.delete(topic)
    ensure(app, settings)
    return offsets


def _states(groups: Groups, name: str) -> list[str]:
    first = f"{name}.state.v"
    return [topic for topic in groups.topics() if topic.startswith(first) and topic.removeprefix(first).isdecimal()]


_FIRST_STEP, _PATIENCE = 200, 5.0


def last_checkpoints(
    settings: KafkaSettings, starts: Position, ends: Position
) -> dict[str, dict[int, ChangelogCheckpoint]]:
    """The last changelog checkpoint (`@`) of each partition of some state topics, all of which are read together.

    Args:
        starts, ends: the first and the last stable offset of each partition.

    Raises:
        InfrastructureError: no broker answers.
    """
    found: dict[str, dict[int, ChangelogCheckpoint]] = {topic: {} for topic in ends.offsets}
    left = ends.beyond(starts).by_partition()
    step = _FIRST_STEP
    with ExitStack() as opened:
        reader = opened.enter_context(closing(KafkaLogReader(settings))) if left else None
        while left and reader is not None:
            begin = {place: max(starts.next_offset(*place), end - step) for place, end in left.items()}
            for records in read_to(reader, Position.of(begin), Position.of(left), patience=_PATIENCE):
                for record in records:
                    if record.key == MARK and (checkpoint := ChangelogCheckpoint.read(record.value or b"")) is not None:
                        found[record.topic][record.partition] = checkpoint
            # A transaction writes its checkpoint before its states, of which there may be many.
            left = {
                (topic, p): end
                for (topic, p), end in left.items()
                if p not in found[topic] and begin[topic, p] > starts.next_offset(topic, p)
            }
            step *= 10
    return found


def _current_offsets(groups: Groups, group: str, task: TaskSpec, settings: KafkaSettings) -> Position:
    """The offsets at which workers would continue, from the group's commits and the state checkpoints."""
    commands = names.commands(task.name)
    ids = groups.identities([commands])
    committed, ends = groups.committed(group, [commands]), groups.ends([commands]).offsets[commands]
    states = _states(groups, task.name)
    found: dict[int, int] = {}
    with closing(Consumer(reader_config(settings), logger=QuietLog("states"))) as consumer:
        for partition, end in ends.items():
            raw = [last_mark(consumer, TopicPartition(topic, partition)) for topic in states]
            checkpoints = [ChangelogCheckpoint.decode(checkpoint) for checkpoint in raw if checkpoint]
            here = [checkpoint.commands for checkpoint in checkpoints if checkpoint.is_of(commands, ids)]
            if checkpoints and not here and task.is_process:
                raise ConfigurationError(
                    f"the {commands} that is there is not the one that {task.name} took its inputs from; say whether "
                    f"it takes them again or only folds them: --commands start or --commands end"
                )
            at = committed.next_offset(commands, partition) if here or not checkpoints else 0
            found[partition] = max([at, *here])
            if found[partition] > end:
                raise cut_commands(task.name, partition, found[partition], end)
    return Position({commands: found})
