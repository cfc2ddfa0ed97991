"""`leftfold doctor`: what may keep things from working here, looked at one by one."""

from __future__ import annotations

import typer

from leftfold.cli.options import AppsOption, JsonOption, KafkaOption, RedisOption, examples

__all__ = ["EXAMPLES", "doctor"]

EXAMPLES = examples(
    "leftfold doctor",
    "leftfold doctor --app services.payments.app:app     another App than the project's",
)

_ABOUT = len("transactions")


def doctor(
    app: AppsOption = None, kafka: KafkaOption = None, redis: RedisOption = None, as_json: JsonOption = False
) -> None:
    """Look for what keeps things from working.

    Python and what is installed, Java, Redis, disk, the project and its Apps, the servers, workers, processes that are
    behind, transactions that stay open, generations of views that nobody needs or lists. Nothing is started or
    changed. Exit code 1 when something is wrong.
    """
    from leftfold.cli.console import emit, say_lines, styled
    from leftfold.cli.examination import Examination
    from leftfold.cli.hints import for_servers

    wrong = False
    for finding in Examination(app or [], kafka, redis).run():
        wrong, message = wrong or not finding.well, for_servers(finding.message)
        if as_json:
            emit({"about": finding.about, "well": finding.well, "message": message})
        else:
            mark = styled("ok   ", fg="green") if finding.well else styled("wrong", fg="red")
            first, *others = message.split("\n")
            indent = " " * (len("wrong ") + _ABOUT + 1)
            say_lines([(mark, f" {finding.about:<{_ABOUT}} {first}"), *(indent + other for other in others)])
    if wrong:
        raise typer.Exit(1)
