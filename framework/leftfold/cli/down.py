"""`leftfold down`: the end of what `leftfold up` started."""

from __future__ import annotations

from leftfold.cli.options import JsonOption, examples

__all__ = ["EXAMPLES", "down"]

EXAMPLES = examples("leftfold down", "rm -r .leftfold      afterwards, to forget the data as well")


def down(as_json: JsonOption = False) -> None:
    """Stop what `leftfold up` started; data stays."""
    from leftfold.cli.console import emit, say
    from leftfold.cli.embedded import local_settings
    from leftfold.connection import ring

    settings = local_settings()
    stopped = ring("leftfold.local").down(settings.data, settings=settings)
    if as_json:
        emit({"stopped": stopped, "data": str(settings.data)})
    else:
        say(f"stopped; the data stays in {settings.data}" if stopped else f"nothing runs in {settings.data}")
