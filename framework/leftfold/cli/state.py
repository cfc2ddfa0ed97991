"""`leftfold state`: what deciders remember of their streams."""

from __future__ import annotations

import typer

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look after the states of streams.")


@app.command()
def verify() -> None:
    """Compare the state topic with the fold of the events."""
