"""`leftfold topics`: what an App keeps in Kafka."""

from __future__ import annotations

import typer

from leftfold.cli.options import AppsOption, JsonOption, KafkaOption, examples

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at the topics of Apps, and make them.")


@app.command("list", epilog=examples("leftfold topics list"))
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


@app.command(epilog=examples("leftfold topics ensure --app services.baskets.app:app"))
def ensure(app: AppsOption = None, kafka: KafkaOption = None) -> None:
    """Make missing topics and check those that are there, as `leftfold run` does."""
    from leftfold.cli.console import amount, say
    from leftfold.cli.ensuring import ensure_now
    from leftfold.cli.project import load_apps
    from leftfold.connection import kafka_settings, ring

    apps = load_apps(app or []).values()
    ensure_now(apps, kafka_settings(kafka))
    names = sorted(topic.name for one in apps for topic in ring("leftfold.kafka.topics").topics_of(one))
    say(f"{amount(len(names), 'topic')} as they should be: {', '.join(names)}")
