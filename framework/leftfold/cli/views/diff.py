"""`leftfold diff`: compares two generations of a view row by row and field by field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from leftfold.cli.options import AppOption, JsonOption, RedisOption, examples
from leftfold.engine.verify.row_differences import Diff, RowDifference
from leftfold.engine.verify.row_differences import diff as compared
from leftfold.engine.views.generations import resolve
from leftfold.runtime.console import amount, emit, say
from leftfold.runtime.project import Usage, load_app, view_of
from leftfold.runtime.servers import store_of

__all__ = ["show_rows"]


EXAMPLES = examples(
    "leftfold diff household_spend --live --held          what `rebuild --hold` would change",
    "leftfold diff household_spend --live --kept          what the last swap changed",
    "leftfold diff household_spend --between march april  two views as of earlier positions",
    "leftfold diff household_spend --between 3-ab12 live --json",
)


def diff(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")],
    live: Annotated[bool, typer.Option("--live", help="The generation that readers see.")] = False,
    held: Annotated[bool, typer.Option("--held", help="The one that `rebuild --hold` made.")] = False,
    kept: Annotated[bool, typer.Option("--kept", help="The one that was live before.")] = False,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option("--between", metavar="A B", help="Two of: live, held, kept, a generation's id, a name."),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", metavar="N", min=0, help="How many rows to show.")] = 5,
    app: AppOption = "",
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two generations of a view: how many rows differ, and in which fields.

    Where both follow the log, rows are compared at one position of it, so that writes meanwhile are no difference. Exit
    code 3 when rows differ.
    """
    names = _names(live=live, held=held, kept=kept, between=between)
    meant = view_of(load_app(app, having=[view]), view)
    with store_of(redis) as store:
        registry = store.registry(meant.name)
        one, other = (resolve(registry, meant, name) for name in names)
        found = compared(one, other, store, samples=samples, moving=meant.folded)
    _tell(found, names, as_json=as_json)
    raise typer.Exit(0 if found.same else 3)


def _names(*, live: bool, held: bool, kept: bool, between: tuple[str, str] | None) -> tuple[str, str]:
    chosen = [name for name, wanted in (("live", live), ("held", held), ("kept", kept)) if wanted]
    if between is not None and not chosen:
        return between
    if between is None and not chosen:
        return "live", "held"
    if between is None and len(chosen) == 2:
        return chosen[0], chosen[1]
    raise Usage("say which two: --live --held, --live --kept, or --between A B")


def _tell(found: Diff, names: tuple[str, str], *, as_json: bool) -> None:
    counts = {name: getattr(found, name) for name in ("equal", "only_one", "only_other", "different", "unsettled")}
    if as_json:
        emit({"view": found.one.view, "one": found.one.id, "other": found.other.id, **counts})
        for row in found.samples:
            emit({"key": row.key, "fields": row.fields, "one": row.one, "other": row.other})
        return
    one, other = (
        f"{name} ({generation.id})" if name != generation.id else name
        for name, generation in zip(names, (found.one, found.other), strict=True)
    )
    say(f"{found.one.view}: {one} against {other}: {amount(found.equal, 'row')} equal")
    counted = {"differ": found.different, f"only in {one}": found.only_one, f"only in {other}": found.only_other}
    for what, count in counted.items():
        if count:
            say(f"  {count:,} {what}")
    if found.unsettled:
        say(f"  {found.unsettled:,} were never seen at one place of the log in both; does a projector of it run?")
    show_rows(found.samples, names[0], names[1])


_SHOWN = 5


def show_rows(rows: Sequence[RowDifference], one: str, other: str) -> None:
    """Prints the first rows that differ, their fields side by side under the names of both generations."""
    width = max(len(one), len(other))
    for row in rows[:_SHOWN]:
        say(f"  {row.key}")
        if row.one is None or row.other is None:
            fields = ", ".join(f"{name}={value}" for name, value in (row.one or row.other or {}).items())
            say(f"    only in {other if row.one is None else one}: {fields}")
            continue
        for name in row.fields:
            say(f"    {name}")
            say(f"      {one:<{width}}  {row.one.get(name, '')}")
            say(f"      {other:<{width}}  {row.other.get(name, '')}")
    if len(rows) > _SHOWN:
        say(f"  ... and {len(rows) - _SHOWN:,} more")
