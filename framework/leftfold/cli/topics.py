"""`leftfold topics`: what an App keeps in Kafka."""

from __future__ import annotations

import typer

from leftfold.cli.options import AppOption, JsonOption, KafkaOption, examples

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at an App's topics, and make them.")


@app.command("list", epilog=examples("leftfold topics list"))
def list_(app: AppOption = "", kafka: KafkaOption = None, as_json: JsonOption = False) -> None:
    """List the App's topics, made or not."""
    from leftfold.cli.console import emit, table
    from leftfold.cli.project import load_app
    from leftfold.connection import kafka_settings, ring

    wanted = ring("leftfold.kafka.topics").topics_of(load_app(app))
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
def ensure(app: AppOption = "", kafka: KafkaOption = None) -> None:
    """Make missing topics and check those that are there, as `leftfold run` does."""
    from leftfold.cli.console import amount, say
    from leftfold.cli.project import load_app
    from leftfold.connection import kafka_settings, ring

    there = ring("leftfold.kafka.topics").ensure(load_app(app), kafka_settings(kafka))
    say(f"{amount(len(there), 'topic')} as they should be: {', '.join(sorted(there))}")
