"""The embedded Kafka broker, one node in KRaft mode, and its configuration."""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.local.files import Progress, last_lines, write_whole
from leftfold.local.jars import jars
from leftfold.local.java import java_home
from leftfold.local.launch import ServerPlan
from leftfold.local.secure import Secure
from leftfold.local.settings import HOST, LocalSettings, Ports, is_open
from leftfold.version import install_command

__all__ = ["coordinates", "plan_kafka"]


# One node holds one replica of everything. Few internal partitions make the first transaction and the first group
# quick; the scan every second ends the transactions of dead writers soon; after a crash the broker can register again
# only when its old session has ended. An idle controller writes a no-op record every half second by default, which is
# a good part of an idle broker's CPU time.
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
    return _escaped("".join(f"{name}={value}\n" for name, value in properties.items()))


def logging_properties(log: Path) -> str:
    """Return log4j2's properties for a quiet console and one rolling log file."""
    return _escaped(_LOGGING.format(log=log))


def _escaped(text: str) -> str:
    """Return a text in ASCII with Java's escapes, since Java reads `.properties` files as ISO-8859-1."""
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if code < _ASCII_END else f"\\u{code:04x}" for code in codes)


def _urls(ports: dict[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())


_CONNECT_SECONDS = 1.0
_ASCII_END = 128


def plan_kafka(settings: LocalSettings, data: Path, progress: Progress, secure: Secure | None = None) -> ServerPlan:
    """Write the broker's configuration, format its storage at the first start, and return its `ServerPlan`.

    Raises:
        ConfigurationError: the path of the data directory has a comma, and is a list of directories to Kafka.
    """
    if "," in str(data):
        raise ConfigurationError(
            f"Kafka takes {data} for several directories; set LEFTFOLD_DATA to one without a comma"
        )
    configured = partial(server_properties, settings, secure=secure)
    java = str(java_home(settings) / "bin" / "java")
    class_path = ":".join(map(str, jars("kafka", settings, progress)))
    ports = Ports(data)
    port, controller_port = ports.take("kafka", settings.kafka_port), ports.take("kafka.controller")
    home = data / "kafka"
    server_log, console = home / "logs" / "server.log", home / "logs" / "console.log"
    server_log.parent.mkdir(parents=True, exist_ok=True)
    write_whole(home / "log4j2.properties", logging_properties(server_log))
    flags = (*settings.kafka_jvm, f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}", "-cp", class_path)
    if not (home / "data").exists():
        progress("formatting the broker's storage")
        _format(home, (java, *flags), configured(data=home / "data.new", port=port, controller_port=controller_port))
    properties = configured(data=home / "data", port=port, controller_port=controller_port)
    write_whole(home / "server.properties", properties)
    return ServerPlan(
        name="kafka",
        address=f"{HOST}:{port}",
        command=(java, f"-Xmx{settings.kafka_memory}", *flags, "kafka.Kafka", str(home / "server.properties")),
        console=console,
        logs=(server_log, console),
    )


def coordinates(address: str, seconds: float, login: Mapping[str, str] | None = None) -> bool:
    """Return whether the broker's transaction and group coordinators answer, which is later than its port is open.

    Args:
        login: librdkafka properties of a login, where the broker requires one.

    Raises:
        ConfigurationError: confluent-kafka is not installed.
    """
    if not is_open(address, min(seconds, _CONNECT_SECONDS)):
        return False
    try:
        from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
    except ImportError as error:
        raise ConfigurationError(f"confluent-kafka is not installed; install it: {install_command('kafka')}") from error
    config = {"bootstrap.servers": address, "log_level": 0, **(login or {})}
    producer = Producer({**config, "transactional.id": "leftfold.local.probe"})
    consumer = Consumer({**config, "group.id": "leftfold.local.probe"})
    try:
        producer.init_transactions(seconds)
        # Transactions and groups have coordinators of their own; each has to load its state first.
        consumer.committed([TopicPartition("leftfold.local.probe", 0)], timeout=seconds)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return True


def _format(home: Path, java: tuple[str, ...], properties: str) -> None:
    # Formatted in another directory and then renamed, so that an interrupted format is not taken for storage.
    new, config = home / "data.new", home / "format.properties"
    shutil.rmtree(new, ignore_errors=True)
    write_whole(config, properties)
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    command = [*java, "kafka.tools.StorageTool", "format", "--standalone", f"--cluster-id={cluster}", "-c", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InfrastructureError(f"Kafka could not format {new}: {last_lines(done.stdout + done.stderr)}")
    config.unlink()
    new.replace(home / "data")
