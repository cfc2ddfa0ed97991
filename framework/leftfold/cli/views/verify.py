"""`leftfold verify`: compares views with a fold of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from leftfold.cli.options import (
    AppOption,
    ArchiveOption,
    JsonOption,
    KafkaOption,
    MasterOption,
    PyFilesOption,
    RedisOption,
    examples,
    note_options,
)
from leftfold.cli.views.diff import show_rows
from leftfold.cli.views.rebuild import EngineOption, share_of, views_meant
from leftfold.engine.verify.verification import Verification
from leftfold.model.app import App
from leftfold.model.view import View
from leftfold.runtime.console import amount, emit, note, say, shown
from leftfold.runtime.lifecycle import folds_of
from leftfold.runtime.operations.generations import Verifying, verified_as
from leftfold.runtime.project import Usage, folded_view_of, load_app

__all__ = ["EXAMPLES", "verify"]


EXAMPLES = examples(
    "leftfold verify                                every view of the App, once",
    "leftfold verify household_spend --deep         also every row, key list and index, field by field",
    "leftfold verify --continuous --share 5%        for ever, with a twentieth of one core",
    "leftfold verify household_spend --generation held --engine spark",
    "leftfold verify --archive /backup/log          old events from the archive, the rest from Kafka",
    "leftfold verify --engine spark --master spark://spark-master:7077 --py-files shop    if workers lack the code",
)


def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[VIEW]...", help="Views; else all.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also compare every row and index entry.")] = False,
    generation: Annotated[
        str, typer.Option("--generation", metavar="WHICH", help="live, held, kept, a name or an id.")
    ] = "live",
    continuous: Annotated[bool, typer.Option("--continuous", help="Verify in turn until Ctrl-C.")] = False,
    share: Annotated[str, typer.Option("--share", metavar="SHARE", help="Of one core, when continuous.")] = "10%",
    engine: Annotated[EngineOption, typer.Option("--engine", help="Where to fold.")] = EngineOption.LOCAL,
    master: MasterOption = None,
    py_files: PyFilesOption = None,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold the log again up to the position of each view, and compare the checksums of its buckets.

    Every bucket keeps a checksum of the rows that were written to it, so a wrong fold shows. A row that was changed,
    evicted or deleted in Redis later does not, nor does a stale index entry: --deep reads all of them. Nothing is
    written, and projectors keep running. Parked keys are left out. Views that Spark or a stream computes are named and
    left out. Exit code 3 when a view differs from the log; build it again then: leftfold rebuild VIEW --hold, diff,
    promote. Exit code 4 when so much was written meanwhile that --deep cannot decide.
    """
    if continuous and engine is EngineOption.SPARK:
        raise Usage("--continuous works in this process, with a share of one core; leave --engine spark out")
    whole = load_app(app, having=names or ())
    views = [folded_view_of(whole, name) for name in names or ()] or [v for v in views_meant(whole, []) if v.folded]
    _tell_left_out(whole, views, named=bool(names))
    of_one_core = share_of(share, "--share", "one core")
    work = Verifying((kafka, redis, archive), generation, deep=deep, folds=folds_of(whole), progress=shown)
    if continuous:
        for result in work.for_ever(views, of_one_core):
            _tell(result, as_json=as_json)
    code = 0
    with work.engine(engine, master, py_files or ()):
        for view in views:
            result = work.run(view)
            _tell(result, as_json=as_json)
            code = _worse(code, result.exit_code)
    if code == 3 and not as_json:
        note_options("leftfold rebuild", [app], kafka, redis, archive)
    raise typer.Exit(code)


def _tell_left_out(app: App, views: Sequence[View[Any, Any]], *, named: bool) -> None:
    """Notes which views of the App cannot be verified, when no view was named.

    Raises:
        Usage: none can.
    """
    left = [] if named else [view for view in app.views if view not in views]
    if left:
        kinds = ([view.name for view in left if view.streamed is streamed] for streamed in (False, True))
        commands = "; ".join(f"leftfold rebuild {' '.join(names)}" for names in kinds if names)
        note(
            f"left out, since their rows are not folded event by event: {', '.join(view.name for view in left)}; "
            f"compute them again: {commands}"
        )
    if not views:
        raise Usage(f"app {app.name} has no view that is folded event by event, so there is nothing to verify")


def _tell(result: Verification, *, as_json: bool) -> None:
    if as_json:
        fields: dict[str, Any] = {**result.__dict__, "equal": result.equal, "position": result.position.offsets}
        sums = {"stored": f"{result.stored:032x}", "folded": f"{result.folded:032x}"}
        emit({**fields, **sums, "rows": [row.__dict__ for row in result.rows]})
        return
    say(
        f"{result.view} {result.generation}: up to {amount(result.events, 'event')} folded in {result.seconds:.1f} s: "
        f"{verified_as(result)}, checksum {result.stored:032x}"
    )
    if result.parked:
        more = " ..." if len(result.parked) > 5 else ""
        say(f"  left out, since they are parked: {', '.join(result.parked[:5])}{more}")
    for key, why in list(result.newly.items())[:5]:
        say(f"  this code parks {key}: {why}")
    show_rows(result.rows, "stored", "folded")
    if result.unsettled:
        say("  more rows were written meanwhile than could be looked at; verify it when less is written")
    if result.exit_code == 3:
        say(f"  build it again: leftfold rebuild {result.view} --hold, then leftfold diff {result.view}")


def _worse(one: int, other: int) -> int:
    """The worse of two exit codes: 3 (a difference) is worse than 4 (not settled)."""
    return 3 if 3 in (one, other) else max(one, other)
