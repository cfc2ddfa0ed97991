"""`leftfold new`: a project to begin with."""

from __future__ import annotations

from typing import Annotated

import typer

from leftfold.cli.options import examples

__all__ = ["EXAMPLES", "new"]

EXAMPLES = examples(
    "leftfold new shop",
    "cd shop && pytest && leftfold dev",
    "leftfold new cinema --category bookings --key booking     the same service in other words",
    "leftfold new cinema --empty                               without a domain, an App to be filled",
)


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the directory, the package and the App.")],
    category: Annotated[
        str, typer.Option("--category", metavar="WORD", help="What its service is called; else carts.")
    ] = "",
    key: Annotated[
        str, typer.Option("--key", metavar="WORD", help="What one of them is called; else the category without its s.")
    ] = "",
    empty: Annotated[bool, typer.Option("--empty", help="Without a domain: an App to be filled.")] = False,
) -> None:
    """Write a project to begin with.

    It passes its own tests and runs: one package with events, a service and two views. Nothing that exists is
    overwritten.
    """
    from pathlib import Path

    from leftfold.cli.checking import compared
    from leftfold.cli.console import amount, note, say
    from leftfold.cli.failures import Usage
    from leftfold.cli.project import find_project, load_app
    from leftfold.scaffold import write_project

    if empty and (category or key):
        raise Usage("--empty writes no service, so --category and --key have nothing to name; leave them out")
    written = write_project(name, Path.cwd(), category=category, key=key, empty=empty)
    project = find_project(Path.cwd() / name)
    compared(load_app("", project), project.lock, write=True)
    for path in [*written, project.lock]:
        say(str(path.relative_to(Path.cwd())))
    note(f"{amount(len(written) + 1, 'file')}; next: cd {name}, pytest, leftfold dev")
