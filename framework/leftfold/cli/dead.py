"""`leftfold dead`: commands and inputs that no worker could take, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold import names
from leftfold.cli.options import JsonOption, KafkaOption, examples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leftfold.cli.burials import Kept
    from leftfold.engine.dead_letter import Letter

__all__ = ["dead"]

dead = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at dead letters; send them again or discard them."
)

_SHOWN = 10
_Which = Annotated[
    list[str], typer.Argument(metavar="LETTER...", help="As in 'baskets.dead[2]@7', or a category: all that wait.")
]
_By = Annotated[str, typer.Option("--by", metavar="WHO", help="Who does so; else your login name.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dead.command(
    "list",
    epilog=examples(
        "leftfold dead list                    of all categories and processes, by reason",
        "leftfold dead list baskets --all      those that were handled, too",
        "leftfold dead list --json | jq -r .reason | sort | uniq -c",
    ),
)
def list_(
    category: Annotated[str, typer.Argument(metavar="[CATEGORY]", help="A category or process; else all.")] = "",
    handled: Annotated[bool, typer.Option("--all", help="Those that were sent again or discarded, too.")] = False,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters by reason.

    Exit code 1 when some wait.

    Events of which routers could make no input are among them: they cannot be sent again. What reactions have parked is
    not: leftfold reactions parked. Neither is what routers were made to pass over: leftfold log skip.
    """
    from leftfold.cli.burials import Burials
    from leftfold.cli.console import amount, emit, lasting, note, say, styled

    burials = Burials(kafka)
    found = [letter for letter in burials.letters(category) if handled or not letter.handled]
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
        note(f"look at one: leftfold dead show '{found[0].place}'" if found else "there are no dead letters that wait")
        for name, one in kept.items():
            lasts = f", which are kept for {lasting(one.seconds)}" if one.seconds else ""
            if one.gone:
                note(f"of {name} up to {one.gone:,} older letters are gone{lasts}")
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
    import base64
    import json
    from datetime import UTC, datetime

    from leftfold.cli.burials import Burials
    from leftfold.cli.console import emit, pairs, say, say_lines

    burials = Burials(kafka)
    (letter,) = burials.chosen([which])
    value = burials.of(letter).original(letter).value or b""
    row = _row(letter, burials.kept(letter.record.topic.removesuffix(names.dead(""))))
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        read = None
    if as_json:
        headers = {name: letter.text(name) for name, _ in letter.record.headers}
        emit({**row, "headers": headers, "value": read, "bytes": base64.b64encode(value).decode()})
        return
    appended, leaves = (
        ms and datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
        for ms in (letter.record.time, row["leaves"])
    )
    pairs({name: told for name, told in {**row, "appended": appended, "leaves": leaves}.items() if told})
    say()
    pairs({name: letter.text(name) for name, _ in letter.record.headers if not name.startswith("dead_")})
    say()
    say(f"{len(value):,} bytes: {value!r}")
    if read is not None:
        say_lines(json.dumps(read, indent=2, ensure_ascii=False).split("\n"))


@dead.command(
    epilog=examples(
        "leftfold dead resend 'baskets.dead[2]@7'          when what was wrong is mended",
        "leftfold dead resend baskets --yes --json         all that wait",
        "leftfold dead resend 'baskets.dead[2]@7' --new-id",
    )
)
def resend(
    which: _Which,
    new_id: Annotated[
        bool, typer.Option("--new-id", help="Under a new id: it counts, whatever became of the old one.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the letter.")] = "",
    by: _By = "",
    yes: _Yes = False,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters again, byte by byte.

    Each goes to the topic and partition that it was taken from.

    A command keeps its id: if its client has sent it again meanwhile, and workers still know the answer, it counts
    once. It is not late, and no client is answered. The letter stays, marked as sent again; what fails again becomes
    another one.
    """
    from leftfold.cli.agreeing import agreed
    from leftfold.cli.burials import Burials
    from leftfold.cli.console import amount, emit, note, say
    from leftfold.cli.signed import signed
    from leftfold.engine.received import command_id

    why, burials = f"{signed(by, reason or 'sent again')}: {reason or 'sent again'}", Burials(kafka)
    letters = burials.sendable(which)
    if letters:
        agreed(f"send {amount(len(letters), 'dead letter')} again, to be decided now?", yes=yes)
    for letter in letters:
        offset, id_ = burials.of(letter).resend(letter, why, id_=command_id() if new_id else "")
        if as_json:
            emit({"letter": str(letter.place), "offset": offset, "id": id_, "new_id": new_id})
        else:
            say(f"{letter.place} is sent again under {'the new' if new_id else 'its own'} id {id_}")
    if not letters and not as_json:
        note("no dead letter waits there")


@dead.command(
    epilog=examples(
        "leftfold dead discard 'baskets.dead[2]@7' --reason \"a test of the gateway\"",
        'leftfold dead discard baskets --reason "ticket 4711" --yes     all that wait',
    )
)
def discard(
    which: _Which,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the letter.")] = "",
    by: _By = "",
    yes: _Yes = False,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mark dead letters as discarded.

    They stay in their topic, and are not listed any more.
    """
    from leftfold.cli.agreeing import agreed
    from leftfold.cli.burials import Burials
    from leftfold.cli.console import amount, emit, note, say
    from leftfold.cli.signed import signed

    why, burials = f"{signed(by, reason)}: {reason}", Burials(kafka)
    letters = burials.waiting(which)
    if letters:
        agreed(f"discard {amount(len(letters), 'dead letter')}?", yes=yes)
    for letter in letters:
        burials.of(letter).discard(letter, why)
        if as_json:
            emit({"letter": str(letter.place), "why": why})
        else:
            say(f"{letter.place} is discarded, {why}")
    if not letters and not as_json:
        note("no dead letter waits there")


def _row(letter: Letter, kept: Mapping[str, Kept]) -> dict[str, Any]:
    leaves = kept[letter.record.topic.removesuffix(names.dead(""))].leaves(letter)
    return {
        "letter": str(letter.place),
        "reason": letter.reason,
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
