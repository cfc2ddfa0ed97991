"""Real servers for tests: embedded, in containers, or external."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
import yaml
from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import embedded
from leftfold.local.embedded_servers import PROBES
from leftfold.redis import RedisSettings
from tests.free_ports import free_port
from tests.waiting import WAIT_SECONDS, wait_until

__all__ = ["Addresses", "alter_topic", "compose_service", "emptied", "patient", "running", "secret_url"]

COMPOSE = Path(__file__).parents[1] / "docker-compose.yml"


@dataclass(frozen=True)
class Addresses:
    """Kafka as `host:port`, Redis as `redis://host:port/0`."""

    kafka: str
    redis: str


@contextmanager
def running(kind: str, data: Path) -> Iterator[Addresses]:
    """Servers of a kind that are ready for work, until the block ends."""
    match kind:
        case "embedded":
            with embedded(data) as servers:
                yield Addresses(servers.kafka, servers.redis)
        case "containers":
            with ExitStack() as stack:
                yield _ready(_containers(stack))
        case _:
            yield _ready(_external())


def emptied(servers: Addresses) -> Addresses:
    """Deletes every topic, and with them what groups have committed, all groups that are left, and all keys."""
    with redis.Redis.from_url(servers.redis) as client:
        client.flushall()
    admin = AdminClient({"bootstrap.servers": servers.kafka})

    def left() -> list[str]:
        return [name for name in admin.list_topics(timeout=WAIT_SECONDS).topics if not name.startswith("__")]

    def deleted() -> bool:
        topics = left()
        for answer in admin.delete_topics(topics, operation_timeout=WAIT_SECONDS).values() if topics else ():
            with suppress(KafkaException):  # one that was deleted is still listed for a moment
                answer.result()
        return not topics

    wait_until(deleted, lambda: f"the end of {left()}")

    def idle() -> list[str]:
        return [one.group_id for one in admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result().valid]

    def ended() -> bool:
        groups = idle()
        if groups:
            admin.delete_consumer_groups(groups, request_timeout=WAIT_SECONDS)
        return not groups

    # A group whose last member was killed becomes idle at any moment.
    wait_until(ended, lambda: f"the end of {idle()}")
    return servers


def patient(brokers: str) -> KafkaSettings:
    """Settings of a client that waits for a broker that stands still for a while."""
    return KafkaSettings(bootstrap_servers=brokers, request_timeout=WAIT_SECONDS)


def alter_topic(settings: KafkaSettings, topic: str, config: Mapping[str, str]) -> None:
    """Changes a topic's configuration and waits until it is known: brokers learn of a change behind the answer."""
    with ClusterAdmin(settings) as cluster:
        cluster.set_configs(topic, config)
        wait_until(lambda: config.items() <= cluster.configs([topic])[topic].items(), f"{config} of {topic}")


def secret_url(settings: RedisSettings) -> str:
    """The URL of a Redis with the password in it, which `settings.url` leaves out."""
    secret = settings.password.get_secret_value() if settings.password is not None else ""
    return settings.url.replace("://", f"://:{quote(secret, safe='')}@") if secret else settings.url


def compose_service(name: str) -> dict[str, Any]:
    """What docker-compose.yml says of a service."""
    service: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"][name]
    return service


def _external() -> Addresses:
    names = ("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "LEFTFOLD_REDIS_URL")
    missing = [name for name in names if not os.environ.get(name)]
    assert not missing, f"--servers=external takes the addresses from the environment; set {' and '.join(missing)}"
    return Addresses(*(os.environ[name] for name in names))


def _containers(stack: ExitStack) -> Addresses:
    """The images and settings of docker-compose.yml, on free ports of this machine."""
    from testcontainers.core.container import DockerContainer

    port = free_port()
    kafka = compose_service("kafka")
    environment = kafka["environment"] | {
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_LISTENERS": f"INSIDE://:9092,CONTROLLER://:9093,HOST://:{port}",
        "KAFKA_ADVERTISED_LISTENERS": f"INSIDE://localhost:9092,HOST://localhost:{port}",
    }
    broker = DockerContainer(kafka["image"]).with_bind_ports(port, port)
    for name, value in environment.items():
        broker = broker.with_env(name, value)
    stack.enter_context(broker)
    redis = compose_service("redis")
    store = DockerContainer(redis["image"]).with_exposed_ports(6379).with_command(redis["command"])
    stack.enter_context(store)
    host = store.get_container_host_ip()
    return Addresses(f"localhost:{port}", f"redis://{host}:{store.get_exposed_port(6379)}/0")


def _ready(addresses: Addresses) -> Addresses:
    first_broker = addresses.kafka.split(",")[0]
    for probe, address in ((PROBES["kafka"], first_broker), (PROBES["redis"], addresses.redis)):
        _wait(probe, address)
    return addresses


def _wait(probe: Callable[[str, float], bool], address: str) -> None:
    wait_until(lambda: probe(address, 5.0), f"{probe.__name__} at {address}")
