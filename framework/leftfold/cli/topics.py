"""`leftfold topics`: what an App keeps in Kafka."""

from __future__ import annotations

from typing import Annotated

import typer

from leftfold.cli.options import AppsOption, JsonOption, KafkaOption, examples
from leftfold.rights import ROLES

__all__ = ["topics"]

topics = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at the topics of Apps, make them, and say who may use them."
)


@topics.command("list", epilog=examples("leftfold topics list"))
def list_(app: AppsOption = None, kafka: KafkaOption = None, as_json: JsonOption = False) -> None:
    """List the topics of Apps, made or not."""
    from leftfold.cli.console import emit, table
    from leftfold.cli.project import load_apps
    from leftfold.connection import kafka_settings, ring

    apps = load_apps(app or []).values()
    wanted = [topic for one in apps for topic in ring("leftfold.kafka.topics").topics_of(one)]
    with ring("leftfold.kafka.cluster").Cluster(kafka_settings(kafka)) as cluster:
        there: dict[str, int] = cluster.partition_counts([topic.name for topic in wanted])
    rows = [{"topic": t.name, "partitions": there.get(t.name), "wanted": t.partitions} for t in wanted]
    if as_json:
        for row in rows:
            emit(row)
    else:
        table(
            [{**row, "partitions": row["partitions"] or "not made yet"} for row in rows],
            ("topic", "partitions", "wanted"),
        )


@topics.command(epilog=examples("leftfold topics ensure --app services.baskets.app:app"))
def ensure(app: AppsOption = None, kafka: KafkaOption = None) -> None:
    """Make missing topics and check the others.

    `leftfold run` does the same when it starts.
    """
    from leftfold.cli.console import amount, say
    from leftfold.cli.ensuring import ensure_now
    from leftfold.cli.project import load_apps
    from leftfold.connection import kafka_settings, ring

    apps = load_apps(app or []).values()
    ensure_now(apps, kafka_settings(kafka))
    names = sorted(topic.name for one in apps for topic in ring("leftfold.kafka.topics").topics_of(one))
    say(f"{amount(len(names), 'topic')} as they should be: {', '.join(names)}")


@topics.command(
    epilog=examples(
        "leftfold topics acl                          what each part needs, as kafka-acls and redis-cli take it",
        "leftfold topics acl worker client            two of them",
        "leftfold topics acl --user 'svc-{app}-{part}'    for users that are called so",
        "leftfold topics acl --apply                  grant it, by the login of the settings",
    )
)
def acl(
    part: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(ROLES)}; else all.")] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="Users' names; with {app} and {part} in it.")] = "{part}",
    apply: Annotated[bool, typer.Option("--apply", help="Grant in Kafka what is missing.")] = False,
    app: AppsOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print or grant the rights that each part needs.

    These are the least rights in Kafka and in Redis; --apply grants those in Kafka.

    Nothing is taken away: what a user may do besides is named. Processes of several Apps that send commands to each
    other, and clients of one App that send to another, are known when all these Apps are given at once.
    """
    from leftfold.cli.granting import grant, print_rights, users_of
    from leftfold.cli.project import load_apps

    users = users_of(load_apps(app or []).values(), part or ROLES, user)
    if apply:
        grant(users, kafka, as_json=as_json)
    else:
        print_rights(users, as_json=as_json)
