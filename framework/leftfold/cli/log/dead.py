"""`leftfold dead`: lists, resends or discards the dead letters of commands and of process inputs."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from leftfold.cli.options import (
    AppsOption,
    ByOption,
    JsonOption,
    KafkaOption,
    ReasonOption,
    YesOption,
    agreed,
    examples,
    note_options,
    signed,
)
from leftfold.errors import ContractError
from leftfold.model import keys as names
from leftfold.ports.outgoing import Letter
from leftfold.runtime.console import amount, emit, lasting, note, pairs, say, say_lines, styled
from leftfold.runtime.operations.dead_letters import AllDeadLetters, Retention, checked_value, group_hash
from leftfold.runtime.project import Usage, load_apps

__all__ = ["dead"]


dead = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at dead letters; send them again or discard them."
)

_SHOWN = 10
_Which = Annotated[
    list[str], typer.Argument(metavar="LETTER...", help="As in 'baskets.dead[2]@7', or a category: all that wait.")
]


@dead.command(
    "list",
    epilog=examples(
        "leftfold dead list                    of all categories and processes, by reason",
        "leftfold dead list baskets --all      also those that were handled",
        "leftfold dead list --json | jq -r .reason | sort | uniq -c",
    ),
)
def list_(
    category: Annotated[str, typer.Argument(metavar="[CATEGORY]", help="A category or process; else all.")] = "",
    handled: Annotated[bool, typer.Option("--all", help="Also those that were sent again or discarded.")] = False,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters by reason.

    Exit code 1 when some wait.

    Events of which routers could make no input are among them: they cannot be sent again. Not among them are events
    parked by reactions: leftfold reactions parked, and events that routers skip: leftfold log skip.
    """
    burials = AllDeadLetters(kafka)
    found = [letter for letter in burials.letters(category, values=False) if handled or not letter.handled]
    kept = burials.kept(category)
    reasons: dict[tuple[str, str, str], list[Letter]] = {}
    for letter in found:
        if as_json:
            emit(_row(letter, kept))
        reasons.setdefault((letter.record.topic, letter.reason, letter.handled), []).append(letter)
    for (topic, reason, done), letters in reasons.items() if not as_json else ():
        counted = f"{amount(len(letters), 'letter')}{f', {done}' if done else ''}"
        say(styled(topic, bold=True), f"  {counted}: {reason}")
        more = f" and {len(letters) - _SHOWN} more" if len(letters) > _SHOWN else ""
        say(f"  {' '.join(str(letter.place) for letter in letters[:_SHOWN])}{more}")
    waiting = sum(not letter.handled for letter in found)
    if not as_json:
        step = f"look at one: leftfold dead show '{found[0].place}'" if found else "there are no dead letters that wait"
        note(step)
        note_options(step, (), kafka)
        for name, one in kept.items():
            lasts = f", which are kept for {lasting(one.seconds)}" if one.seconds else ""
            if one.deleted:
                note(f"of {name} up to {one.deleted:,} older letters are deleted{lasts}")
            if one.warning:
                note(f"it is not known how long those of {name} are kept: {one.warning}")
    raise typer.Exit(1 if waiting else 0)


@dead.command(
    epilog=examples(
        "leftfold dead show 'baskets.dead[2]@7'", "leftfold dead show 'baskets.dead[2]@7' --json | jq .value"
    )
)
def show(
    which: Annotated[str, typer.Argument(metavar="LETTER", help="As in 'baskets.dead[2]@7'.")],
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a dead letter: reason, headers, bytes."""
    burials = AllDeadLetters(kafka)
    (letter,) = burials.chosen([which])
    try:
        value, lost = burials.original(letter).value or b"", ""
    except ContractError as error:
        value, lost = b"", f"it was too large to copy, and its original is lost: {error}"
    row = _row(letter, burials.kept(letter.record.topic.removesuffix(names.dead(""))))
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        read = None
    if as_json:
        headers = {name: letter.text(name) for name, _ in letter.record.headers}
        emit({**row, "headers": headers, "value": read, "bytes": base64.b64encode(value).decode(), "lost": lost})
        return
    appended, leaves = (
        ms and datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
        for ms in (letter.record.time, row["leaves"])
    )
    pairs({name: value for name, value in {**row, "appended": appended, "leaves": leaves}.items() if value})
    say()
    pairs({name: letter.text(name) for name, _ in letter.record.headers if not name.startswith("dead_")})
    say()
    say(lost or f"{len(value):,} bytes: {value!r}")
    if read is not None:
        say_lines(json.dumps(read, indent=2, ensure_ascii=False).split("\n"))


@dead.command(
    epilog=examples(
        "leftfold dead resend 'baskets.dead[2]@7'          after the cause is fixed",
        "leftfold dead resend baskets --yes --json         all that wait",
        "leftfold dead resend 'baskets.dead[2]@7' --new-id",
        "leftfold dead resend 'baskets.dead[2]@7' --body '{...}' --reason \"the price was in cents\"     another body",
    )
)
def resend(
    which: _Which,
    new_id: Annotated[
        bool, typer.Option("--new-id", help="Under a new id: it counts, whatever became of the old one.")
    ] = False,
    body: Annotated[
        str, typer.Option("--body", metavar="JSON", help="Of one letter: send this instead, under a new id.")
    ] = "",
    reason: ReasonOption = "",
    by: ByOption = "",
    yes: YesOption = False,
    app: AppsOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters again, byte by byte.

    Each goes to the topic and partition that it was taken from. Another body is checked against its class first.

    A command keeps its id: if its client has sent it again meanwhile, and workers still know the answer, it counts
    once. It does not count as late, and no client is answered. A command of a process always keeps its id, by which the
    process knows the answer. The letter stays, marked as sent again; if it fails
    again, that makes another letter. Of two operators at work on the letters of a category, one is stopped.

    An event that a process could not take is taken now. Its answers, refusals and due timers cannot be sent again,
    since it no longer waits for them: send the command that they call for, and discard the letter. Nor can a letter
    whose command was too large to copy and is deleted. Where a category is named, they are left out.
    """
    why, burials = f"{signed(by, reason or 'sent again')}: {reason or 'sent again'}", AllDeadLetters(kafka)
    letters, refused = burials.sendable(which)
    for left_out in refused[:_SHOWN]:
        note(left_out)
    if len(refused) > _SHOWN:
        note(f"{len(refused) - _SHOWN} more cannot be sent again; see: leftfold dead list")
    note_options("\n".join(refused), app or (), kafka)
    other = _other_body(letters, body, app) if body else None
    new_id = new_id or other is not None
    if letters:
        agreed(f"send {amount(len(letters), 'dead letter')} again, to be decided now?", yes=yes)
    for letter, offset, id_, is_new in burials.resend(letters, why, new_id=new_id, body=other):
        if as_json:
            emit({"letter": str(letter.place), "offset": offset, "id": id_, "new_id": is_new})
        else:
            say(f"{letter.place} is sent again under {'the new' if is_new else 'its own'} id {id_}")
    if not letters and not as_json:
        note(f"no dead letter waits there{' that can be sent again' if refused else ''}")


def _other_body(letters: list[Letter], body: str, apps: list[str] | None) -> bytes:
    if len(letters) != 1:
        raise Usage(f"--body is for one letter, and these are {len(letters)}; name one: leftfold dead list")
    return checked_value(load_apps(apps or []).values(), letters[0], body)


@dead.command(
    epilog=examples(
        "leftfold dead discard 'baskets.dead[2]@7' --reason \"a test of the gateway\"",
        'leftfold dead discard baskets --reason "ticket 4711" --yes     all that wait',
    )
)
def discard(
    which: _Which,
    reason: ReasonOption = "",
    by: ByOption = "",
    yes: YesOption = False,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mark dead letters as discarded.

    They stay in their topic, and are no longer listed.
    """
    why, burials = f"{signed(by, reason)}: {reason}", AllDeadLetters(kafka)
    letters = burials.waiting(which)
    if letters:
        agreed(f"discard {amount(len(letters), 'dead letter')}?", yes=yes)
    for letter in burials.discard(letters, why):
        if as_json:
            emit({"letter": str(letter.place), "why": why})
        else:
            say(f"{letter.place} is discarded, {why}")
    if not letters and not as_json:
        note("no dead letter waits there")


def _row(letter: Letter, kept: Mapping[str, Retention]) -> dict[str, Any]:
    leaves = kept[letter.record.topic.removesuffix(names.dead(""))].leaves(letter)
    return {
        "letter": str(letter.place),
        "reason": letter.reason,
        "group": group_hash(letter.reason),
        "source": letter.source,
        "type": letter.text("ce_type"),
        "key": (letter.record.key or b"").decode(errors="replace"),
        "id": letter.text("ce_id"),
        "time": letter.text("ce_time"),
        "appended": letter.record.time,
        "leaves": leaves and int(1000 * leaves),
        "handled": letter.handled,
        "why": letter.why,
    }
