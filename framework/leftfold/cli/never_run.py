"""The commonest reason why nothing can be sent: the App has never run there."""

from __future__ import annotations

from leftfold import names
from leftfold.app import App
from leftfold.connection import kafka_settings, ring
from leftfold.errors import InfrastructureError, LeftfoldError

__all__ = ["explained"]


def explained(error: InfrastructureError, app: App, kafka: str | None) -> InfrastructureError:
    """The error itself, or a plainer one when a broker answers but has no topics of the App."""
    unreachable: type[InfrastructureError] = ring("leftfold.kafka.errors").Unreachable
    if isinstance(error, unreachable):
        return error
    try:
        settings = kafka_settings(kafka)
        with ring("leftfold.kafka.cluster").Cluster(settings) as cluster:
            wanted = [names.replies(app.name), *(names.commands(decider.name) for decider in app.deciders)]
            there = cluster.partition_counts(wanted)
    except LeftfoldError:
        return error
    missing = [topic for topic in wanted if topic not in there]
    if not missing:
        return error
    return InfrastructureError(
        f"app {app.name} has never run at {settings.bootstrap_servers} ({missing[0]} does not exist), and nothing was "
        f"sent; start it in another terminal: leftfold run"
    )
