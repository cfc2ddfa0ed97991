"""A process whose events are another topic by now takes none of them for those that it has taken."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from leftfold.errors import ConfigurationError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.log_identity import KnownLogs
from leftfold.model import keys as names
from tests.process.alarms import Wind, app
from tests.process.trading import Trading, committed
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

FAR = datetime(2999, 1, 1, tzinfo=UTC)


def test_a_process_refuses_events_of_a_topic_that_was_made_again(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin, at the end, works on: the new topic's first events have offsets that it knows, and count as taken."""
    ensure(app, settings)
    bell, log, states = "bell", names.events("bells"), names.state("alarm", 1)
    with Trading(settings, app, parts=("bells", "alarm", "router")) as trading:
        trading.client.send(Wind(bell=bell, at=FAR), timeout=240.0)
        wait_until(lambda: any(r.key == bell.encode() for r in committed(settings, states)), "the timer")
    with ClusterAdmin(settings) as cluster:
        former = cluster.identities([log])[log]
        cluster.delete(log)
        ensure(app, settings)
        now = cluster.identities([log])[log]
    refused = re.escape(f"has taken events of a topic {log} with id {former}, and the one that is there has id {now}")
    with pytest.raises(ConfigurationError, match=f"^process alarm {refused}"):
        _serve(settings)
    monkeypatch.setattr(KnownLogs, "check_same", lambda *_: None)
    assert _serve(settings)


def _serve(settings: KafkaSettings) -> bool:
    """Whether a worker of the process serves everything; raises what ended it."""
    trading = Trading(settings, app, parts=("alarm",))
    with trading.client:
        (worker,) = trading.workers.values()
        try:
            while not trading.serves_all():
                worker.step()
            return True
        finally:
            worker.close()
