"""The configuration files of the embedded broker."""

from __future__ import annotations

from pathlib import Path

from leftfold.local.ports import HOST
from leftfold.local.secure import Secure
from leftfold.local.settings import LocalSettings

__all__ = ["logging_properties", "server_properties"]

# One node holds one copy of everything. Few internal partitions make the first transaction and the first group quick;
# the scan every second ends the transactions of dead writers soon; after a crash the broker may register anew only when
# its old session has ended. An idle controller writes a mark every half second by default, which is a good part of
# what an idle broker takes.
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "metadata.max.idle.interval.ms": "5000",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "8",
    "offsets.retention.minutes": "2147483647",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "8",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "500",
}

_LOGGING = """status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName={log}
appender.file.filePattern={log}.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=10MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=3
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
logger.controller.name=org.apache.kafka.controller.QuorumController
logger.controller.level=error
"""


def server_properties(
    settings: LocalSettings, *, data: Path, port: int, controller_port: int, secure: Secure | None = None
) -> str:
    """Return `server.properties` of a single node that is broker and controller, on the loopback interface only."""
    protocol = "PLAINTEXT" if secure is None else "SASL_SSL"
    listeners = {protocol: port, "CONTROLLER": controller_port}
    advertised = dict(listeners)
    for extra in settings.kafka_listeners:
        listeners[extra.name] = extra.port
        advertised[extra.name] = extra.advertised_port
    properties = {
        **_PROPERTIES,
        "log.dirs": str(data),
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
        "listeners": _urls(listeners),
        "advertised.listeners": _urls(advertised),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name in listeners),
        **({} if secure is None else secure.broker()),
        **settings.kafka_properties,
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def logging_properties(log: Path) -> str:
    """Return log4j2's properties for a quiet console and one rolling log file."""
    return _LOGGING.format(log=log)


def _urls(ports: dict[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
