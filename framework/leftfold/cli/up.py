"""`leftfold up`: a real Kafka and a real Redis on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from leftfold.cli.options import JsonOption, examples

__all__ = ["EXAMPLES", "up"]

EXAMPLES = examples(
    "leftfold up",
    "LEFTFOLD_DATA=/var/tmp/play leftfold up     another data directory",
    "leftfold up --secure                        with logins, ACLs and TLS, as in production",
)


def up(
    secure: Annotated[bool, typer.Option("--secure", help="With logins, ACLs and TLS, from now on.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Start Kafka and Redis on this machine.

    They run on when this command has ended. They keep their data and ports in .leftfold beside pyproject.toml, and
    every command finds them there; outside a project LEFTFOLD_DATA must say where. The first start fetches Kafka.
    Servers whose address is configured are not started.

    With --secure they take TLS only, and know a user for each part of a service, whose environment is in
    .leftfold/secure/PART.env. Commands typed here log in as admin, who may do everything; the others may do in Kafka
    what `leftfold topics acl --apply` grants them. The data directory stays so until you delete .leftfold/secure.
    """
    from leftfold.cli.console import emit, note, pairs
    from leftfold.cli.embedded import local_settings, needed
    from leftfold.cli.project import find_project
    from leftfold.connection import ring
    from leftfold.veil import veiled

    need = needed()
    need.tell()
    if not need.want:
        return
    if ring("leftfold.servers").Environment().data is None:
        find_project().require()
    settings = local_settings()
    if secure:
        settings = settings.model_copy(update={"secure": True})
    servers = ring("leftfold.local").up(settings, want=need.want)
    told = {"kafka": servers.kafka, "redis": veiled(servers.redis), "data": str(servers.data)}
    if as_json:
        emit(told)
        return
    pairs({name: value for name, value in told.items() if value})
    if servers.kafka_login:
        note(f"logins: {servers.data / 'secure'}/PART.env; rights in Kafka: leftfold topics acl --apply")
    note("next: leftfold run, leftfold status; stop them with: leftfold down")
