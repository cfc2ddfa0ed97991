"""`leftfold timers` and `leftfold reactions`: timers of processes, and parked events and offsets of reactions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import inf
from typing import Annotated, Any

import typer

from leftfold.cli.options import (
    AppOption,
    ArchiveOption,
    ByOption,
    JsonOption,
    KafkaOption,
    ReasonOption,
    YesOption,
    agreed,
    examples,
    note_options,
    read_time,
    seconds,
    signed,
)
from leftfold.engine.processing.log_time import WatermarkStatus
from leftfold.engine.processing.timer_admin import Action, Order, SetTimer
from leftfold.kafka.reactions.start_offsets import StartOffsets
from leftfold.model.keys import commands
from leftfold.runtime.connect import kafka_settings, open_archive
from leftfold.runtime.console import amount, emit, lasting, note, say, table
from leftfold.runtime.operations.reactions import discard_parked, parked_events
from leftfold.runtime.operations.timers import Ordered, TimerWork, log_time_now, process_of, row_of
from leftfold.runtime.project import archive_of, load_app, load_apps, member_of

__all__ = ["reactions", "timers"]


_STALE = 10.0
"""Seconds; routers report several times a second, so one that was silent for so long has ended or is stuck."""
_NAMED_IN_LINE = 3


def _shown(row: dict[str, Any]) -> dict[str, object]:
    """The row as the table shows it."""
    left = row["left"]
    remaining = "unknown" if left is None else lasting(left) if left > 0 else f"overdue for {lasting(-left)}"
    return {**row, "left": remaining, "sends": f"{row['sends']} {json.dumps(row['command'], ensure_ascii=False)}"}


def _remark(process: str, count: int, watermark: WatermarkStatus, workers: int) -> str:
    """A remark on the timers of a process: their number, log time, and what keeps them from firing."""
    head, silent, reported = f"{process}: {amount(count, 'timer')}", watermark.silent, watermark.reported
    if watermark.now is not None:
        now = watermark.now.isoformat(timespec="seconds").replace("+00:00", "Z")
        head += f"; log time {now} (slowest: {watermark.slowest})"
    elif reported is not None and not silent:
        head += "; how late it is in the log is not known: old events are being loaded"
    elif reported is not None:
        more = f" and {amount(len(silent) - _NAMED_IN_LINE, 'other')}" if len(silent) > _NAMED_IN_LINE else ""
        head += f"; how late it is in {', '.join(silent[:_NAMED_IN_LINE])}{more}, no router knows yet"
    if reported is None or (datetime.now(UTC) - reported).total_seconds() > _STALE:
        since = f" since {reported.isoformat(timespec='seconds').replace('+00:00', 'Z')}" if reported else ""
        head += f"; no router has said anything{since}, so no timer fires; start: leftfold run {process}"
    elif not workers:
        head += f"; no worker is there, so no timer fires; start: leftfold run {process}"
    return head


timers = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at timers of processes; fire or cancel.")

_Process = Annotated[str, typer.Argument(metavar="PROCESS", help="The process's name.")]
_Key = Annotated[str, typer.Argument(metavar="KEY", help="The business key of the instance.")]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The timer's name.")]
_Timeout = Annotated[
    float, typer.Option("--timeout", metavar="TIME", parser=seconds, help="How long to wait for a worker: 30s, 2m.")
]
_WAIT = 30.0


@timers.command(
    "list",
    epilog=examples(
        "leftfold timers list                          of every process, the next one first",
        "leftfold timers list checkout --key o-1",
        "leftfold timers list checkout --json | jq 'select(.overdue)'",
    ),
)
def list_(
    name: Annotated[str, typer.Argument(metavar="[PROCESS]", help="The process's name; else all.")] = "",
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="One instance.")] = "",
    app: AppOption = "",
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List timers, when each is due, what it sends.

    Log time decides: the time of the slowest partition of the events that the process listens to, as its routers report
    it. A timer that is still set at its time is overdue.
    """
    apps = [load_app(app, having=[name])] if name else [*load_apps([app]).values()]
    if not any(one.processes for one in apps):
        note(f"app {', '.join(one.name for one in apps)} has no processes, and so no timers")
    found = [(one, process) for one in apps for process in ([process_of(one, name)] if name else one.processes)]
    for whole, process in found:
        with TimerWork(whole, process, kafka, key) as work:
            watermark, workers = work.reported_time(), work.workers()
            rows = [row_of(process.name, timer, watermark) for timer in work.table.timers(key)]
        rows.sort(key=lambda row: (row["due"], row["key"], row["timer"]))
        if as_json:
            emit(*rows)
            continue
        remark = _remark(process.name, len(rows), watermark, workers)
        note(remark)
        note_options(remark, [app], kafka)
        table([_shown(row) for row in rows], ("process", "key", "timer", "due", "left", "sends"))


_NOT_TAKEN = 4


def _give(
    context: typer.Context, process: _Process, key: _Key, name: _Name, reason: ReasonOption, by: ByOption = "",
    timeout: _Timeout = _WAIT, yes: YesOption = False, app: AppOption = "", kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Writes the order that the command is named after, and waits for a worker to take it.

    Raises:
        Usage: there is no such timer, or no reason is given. typer.Exit: 4 when no worker took it in time, 1 when the
            user did not confirm it.
    """
    action, actor = Action(context.info_name or ""), signed(by, reason)
    whole = load_app(app, having=[process])
    with TimerWork(whole, process_of(whole, process), kafka) as work:
        timer = work.timer(key, name)
        agreed(_question(action, process, timer), yes=yes)
        order = Order(action, actor, reason, log_time_now(work.reported_time()))
        done = work.give(timer, order, timeout)
    _tell(process, order, done, as_json=as_json)
    if not done.taken:
        why = (
            f"no worker has taken it within {timeout:g} s; it stays in the log and counts once one does. "
            f"Start one: leftfold run {process}"
        )
        note(why)
        note_options(why, [app], kafka)
        raise typer.Exit(_NOT_TAKEN)


timers.command(
    "fire",
    help="""Send the command of a timer now. Asks first.

    The worker takes the order in its transaction, as any input. It counts once, for the timer as it was set when the
    order was given: typed twice, or while the timer fires by itself, the second does nothing; a timer that was set
    again meanwhile is left alone. Exit code 4 when no worker took the order in time: it stays in the log for the next.
    """,
    epilog=examples(
        'leftfold timers fire checkout o-1 late --reason "the customer will not pay"',
        'leftfold timers fire checkout o-1 late --reason "ticket 4711" --by anna --yes --json',
    ),
)(_give)
timers.command(
    "cancel",
    help="""Cancel a timer. Asks first.

    The worker takes the order in its transaction, as any input: if the timer fired before, nothing happens; a timer
    that was set again meanwhile is left alone. Exit code 4 when no worker took the order in time: it stays in the log
    for the next one.
    """,
    epilog=examples(
        'leftfold timers cancel checkout o-1 late --reason "paid in cash"',
        'leftfold timers cancel checkout o-1 late --reason "ticket 4711" --by anna --timeout 2m',
    ),
)(_give)


def _question(action: Action, process: str, timer: SetTimer) -> str:
    sends = f"{timer.due.type} {timer.due.value}"
    became = f"it sends {sends} now" if action is Action.FIRE else f"it will never send {sends}"
    return f"{action.value} timer {timer.name} of {process} {timer.key}, due {timer.due.at}: {became}. Sure?"


def _tell(process: str, order: Order, done: Ordered, *, as_json: bool) -> None:
    topic, timer = commands(process), done.timer
    if as_json:
        place = {"topic": topic, "partition": timer.partition, "offset": done.offset}
        fields = {"process": process, "key": timer.key, "timer": timer.name, "action": order.action.value}
        whom = {"actor": order.actor, "reason": order.reason, "id": done.id, "correlation_id": timer.due.correlation}
        emit({**fields, "due": timer.due.at, **whom, **place, "taken": done.taken})
        return
    became = "taken; the timer is not set any more" if done.taken else "not taken yet"
    say(f"{process} {timer.key}: {order.action.value} timer {timer.name}, due {timer.due.at}: {became}")
    say(f"order {done.id} is {topic}[{timer.partition}]@{done.offset}; see: leftfold log trace {done.id}")


reactions = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Begin reactions; list their parked events.")

_Reaction = Annotated[str, typer.Argument(metavar="REACTION", help="Its name.")]


def _since(text: str) -> str | datetime:
    return text if text in ("end", "start") else read_time(text)


@reactions.command(
    epilog=examples(
        "leftfold reactions begin receipts --since end                     act on what happens from now on",
        "leftfold reactions begin receipts --since 2026-11-01T12:00:00Z    and on what was appended since then, again",
    )
)
def begin(
    name: _Reaction,
    since: Annotated[
        Any,
        typer.Option(
            "--since", metavar="TIME", parser=_since, help="end, start, or when events were appended: a time, 2h."
        ),
    ],
    yes: YesOption = False,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a reaction, or move it to other offsets.

    Events behind these offsets are acted on, a second time if they were before, with the same idempotency keys; events
    before them never are; start is the first event that the topics hold. No process of the reaction may run meanwhile.
    """
    whole = load_app(app, having=[name])
    past = open_archive(archive_of(archive))
    reaction = member_of(whole, "reaction", whole.reactions, name)
    beginnings = StartOffsets(whole, reaction, kafka_settings(kafka), past)
    agreed(f"have reaction {name} continue at {since}, and act on every event after that?", yes=yes)
    offsets: dict[tuple[str, int], int] = beginnings.again(since)
    if as_json:
        emit({"reaction": name, "offsets": {f"{topic}/{p}": offset for (topic, p), offset in offsets.items()}})
    else:
        for (topic, partition), offset in sorted(offsets.items()):
            say(f"{topic}[{partition}] continues at {offset}")


@reactions.command(
    epilog=examples("leftfold reactions parked receipts", "leftfold retry receipts      try them once more")
)
def parked(
    name: _Reaction,
    app: AppOption = "",
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List parked events and the reason of each.

    Exit code 1 when there are some.
    """
    whole = load_app(app, having=[name])
    rows = parked_events(member_of(whole, "reaction", whole.reactions, name).name, kafka, inf if as_json else 0)
    if as_json:
        emit(*rows)
    else:
        table(rows, ("event", "type", "key", "tries", "why"))
        remark = f"when the cause is fixed: leftfold retry {name}" if rows else "nothing is parked"
        note(remark)
        note_options(remark, [app], kafka)
    raise typer.Exit(1 if rows else 0)


@reactions.command(
    epilog=examples(
        'leftfold reactions discard receipts --reason "not sent any more"           what it does not handle any more',
        'leftfold reactions discard receipts baskets.events/0/17 --reason "a test"  this one',
    )
)
def discard(
    name: _Reaction,
    events: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EVENT]...", help="As listed by `parked`; else types not handled, and foreign records."
        ),
    ] = None,
    reason: ReasonOption = "",
    by: ByOption = "",
    yes: YesOption = False,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have parked events never be tried again.

    Who did so and why is kept in the log. Their bytes stay in the topic of parked events.
    """
    whole = load_app(app, having=[name])
    reaction = member_of(whole, "reaction", whole.reactions, name).name
    who = signed(by, reason)
    what = amount(len(events), "event") if events else "what it does not handle, and foreign records,"
    agreed(f"have reaction {name} never try {what} again?", yes=yes)
    count = discard_parked(whole, reaction, kafka, events or (), why=reason, who=who, archive=archive)
    if as_json:
        emit({"reaction": name, "discarded": count})
    else:
        say(f"{name}: {amount(count, 'event')} discarded")
