"""What the pages about deployment have operators type and apply is what this version takes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyspark
import pytest
import typer
import yaml
from pydantic_settings import BaseSettings

from leftfold import memory
from leftfold.cli.main import app as cli
from leftfold.errors import ConfigurationError
from leftfold.http.gateway import _READY_SECONDS, gateway
from leftfold.http.gateway_server import _DRAIN_SECONDS, _LINGER_SECONDS
from leftfold.http.settings import HttpSettings
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.redis import RedisSettings
from leftfold.runtime.supervisor import Supervisor
from leftfold.spark import SparkSettings
from services.baskets.app import app

ROOT = Path(__file__).parents[2]
SERVING = (ROOT / "docs" / "serving.md").read_text("utf-8")
TEXT = (ROOT / "docs" / "deployment.md").read_text("utf-8") + SERVING
MANIFESTS: list[dict[str, Any]] = [
    one for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL) for one in yaml.safe_load_all(block)
]
SETTINGS: dict[str, type[BaseSettings]] = {
    "LEFTFOLD_HTTP_": HttpSettings,
    "LEFTFOLD_KAFKA_": KafkaSettings,
    "LEFTFOLD_REDIS_": RedisSettings,
    "LEFTFOLD_SPARK_": SparkSettings,
}
COMMANDS: Any = typer.main.get_command(cli)


def shell() -> Iterator[list[str]]:
    """The commands of all shell blocks, one list of words each."""
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield shlex.split(line)


def pods() -> Iterator[dict[str, Any]]:
    """The specs of pods in workloads."""
    return (one["spec"]["template"]["spec"] for one in MANIFESTS if one["kind"] in ("Deployment", "Job"))


def containers() -> Iterator[dict[str, Any]]:
    return (container for pod in pods() for container in pod["containers"])


def typed() -> list[list[str]]:
    """Every `leftfold ...` in shell blocks, running text, manifests and units, without its first word."""
    said = [words[1:] for words in shell() if words[0] == "leftfold"]
    said += [words[words.index("rebuild") :] for words in shell() if words[0] == "spark-submit"]
    said += [shlex.split(text)[1:] for text in re.findall(r"`(leftfold [^`]+)`", TEXT)]
    said += [shlex.split(text) for text in re.findall(r"(?:\$\(|ExecStart=\S*/)leftfold ([^)\n]+)", TEXT)]
    return said + [container["args"][1:] for container in containers()]


@pytest.mark.parametrize("words", typed(), ids=" ".join)
def test_every_command_is_one_that_the_command_line_takes(words: list[str]) -> None:
    command = COMMANDS.get_command(None, words[0])
    context = command.make_context(words[0], list(words[1:]))
    names = context.params.get("names") or []
    assert set(names) <= {view.name for view in app.views} | {decider.name for decider in app.deciders}


def test_there_are_commands_of_each_kind() -> None:
    assert {words[0] for words in typed()} >= {"console", "plan", "rebuild", "run", "serve", "status"}
    assert ["serve", "--new-key", "shop"] in typed()


def variables() -> set[str]:
    named = set(re.findall(r"\bLEFTFOLD_[A-Z_]+[A-Z]\b", TEXT))
    return named - {"LEFTFOLD_APP"}


@pytest.mark.parametrize("name", sorted(variables()))
def test_every_variable_is_a_setting(name: str) -> None:
    prefix = next(prefix for prefix in SETTINGS if name.startswith(prefix))
    assert name.removeprefix(prefix).lower() in SETTINGS[prefix].model_fields


def test_the_settings_are_accepted_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    for manifest in MANIFESTS:
        for name, value in {**manifest.get("data", {}), **manifest.get("stringData", {})}.items():
            monkeypatch.setenv(name, value)
    for container in containers():
        for variable in container.get("env", ()):
            monkeypatch.setenv(variable["name"], variable.get("value", "from the pod"))
    assert KafkaSettings().sasl_mechanism == "SCRAM-SHA-512"
    assert RedisSettings().password is not None
    spark = SparkSettings()
    assert spark.properties["spark.driver.port"] == "7078"


def properties() -> set[str]:
    """The names of Spark's properties that the page sets."""
    found = {word.partition("=")[0] for words in shell() for word in words if word.startswith("spark.")}
    for container in containers():
        for variable in container.get("env", ()):
            if variable["name"] == "LEFTFOLD_SPARK_PROPERTIES":
                found |= json.loads(variable["value"]).keys()
    return found


def test_sparks_properties_are_known_to_spark() -> None:
    home = Path(pyspark.__file__).parent / "jars"
    code = b""
    for jar in (*home.glob("spark-core_*.jar"), *home.glob("spark-kubernetes_*.jar"), *home.glob("spark-common*.jar")):
        with ZipFile(jar) as archive:
            found = [n for n in archive.namelist() if n.endswith(".class") and ("config" in n.lower())]
            code += b"".join(archive.read(name) for name in found)
    assert len(properties()) > 10
    # Of those that take a name of the user's own, the beginning.
    begun = {re.sub(r"(?<=driverEnv\.|retKeyRef\.)\w+$", "", name) for name in properties()}
    assert not sorted(name for name in begun if not known(name, code))


def known(name: str, code: bytes) -> bool:
    """Whether Spark's classes name a property, whole or put together of a prefix and a last word."""
    prefix, _, last = name.rpartition(".")
    return name.encode() in code or (prefix.encode() in code and b"." + last.encode() in code)


def test_workloads_find_what_they_name() -> None:
    kinds = {(one["kind"], one["metadata"]["name"]) for one in MANIFESTS}
    kinds |= {("Secret", words[4]) for words in shell() if words[:4] == ["kubectl", "create", "secret", "generic"]}
    for one in MANIFESTS:
        if one["kind"] == "Deployment":
            assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
    for container in containers():
        for source in container["envFrom"]:
            ((kind, named),) = source.items()
            assert ({"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind], named["name"]) in kinds
    for pod in pods():
        if "serviceAccountName" in pod:
            assert ("ServiceAccount", pod["serviceAccountName"]) in kinds
    services = {one["metadata"]["name"]: one["spec"] for one in MANIFESTS if one["kind"] == "Service"}
    labels = [
        one["spec"]["template"]["metadata"]["labels"] for one in MANIFESTS if one["kind"] in ("Deployment", "Job")
    ]
    assert services.keys() == {"gateway", "console"}
    assert all(labels.count(service["selector"]) == 1 for service in services.values())


def test_executors_come_back_to_the_pod_of_their_own_driver() -> None:
    hosts = [
        variable
        for container in containers()
        for variable in container.get("env", ())
        if variable["name"] == "LEFTFOLD_SPARK_HOST"
    ]
    assert [host["valueFrom"]["fieldRef"]["fieldPath"] for host in hosts] == ["status.podIP"]


def test_a_driver_of_spark_submit_gets_every_setting_and_secret() -> None:
    (words,) = [words for words in shell() if words[0] == "spark-submit" and "cluster" in words]
    given = {word.partition("=")[0].rpartition(".")[2] for word in words if ".driverEnv." in word}
    secret = {word.partition("=")[0].rpartition(".")[2] for word in words if ".secretKeyRef." in word}
    settings = {one["kind"]: one for one in MANIFESTS if one["metadata"]["name"] == "leftfold"}
    assert given == settings["ConfigMap"]["data"].keys()
    assert secret == settings["Secret"]["stringData"].keys()


def test_pods_and_image_are_admitted_where_only_restricted_ones_are() -> None:
    *_, user = re.findall(r"^USER (\S+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d*(:\d+)?", user), "a kubelet cannot know whether a name is root"
    for container in containers():
        assert container["securityContext"] == {
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }


def test_a_pod_has_longer_to_end_than_its_parts() -> None:
    grace = signature(Supervisor).parameters["grace"].default
    assert f"{grace:.0f} s for it" in TEXT
    for pod in pods():
        assert pod["terminationGracePeriodSeconds"] > grace


def test_no_probe_restarts_what_waits_for_its_servers() -> None:
    """`run` waits for Kafka before it starts a part: a probe that looks for parts would end it while it waits."""
    parts = [container for container in containers() if container["args"][:2] == ["leftfold", "run"]]
    assert len(parts) == 2
    assert not [container["name"] for container in parts if "livenessProbe" in container]


def container_named(name: str) -> dict[str, Any]:
    """The container of a Deployment."""
    (one,) = [one for one in MANIFESTS if one["kind"] == "Deployment" and one["metadata"]["name"] == name]
    (found,) = one["spec"]["template"]["spec"]["containers"]
    return {**found, "grace": one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]}


def test_probes_ask_for_routes_of_the_gateway_where_it_listens_and_wait_for_their_answer() -> None:
    container = container_named("gateway")
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        routes = gateway([(app, world)]).openapi()["paths"].keys()
    probes = [container["readinessProbe"], container["livenessProbe"]]
    assert {probe["httpGet"]["path"] for probe in probes} <= routes
    assert probes[0]["timeoutSeconds"] > _READY_SECONDS
    assert f"answers within {'five' if _READY_SECONDS == 5 else _READY_SECONDS} seconds" in SERVING


@pytest.mark.parametrize("name", ["gateway", "console"])
def test_what_serves_listens_at_the_port_that_its_pod_names_for_all_who_reach_it(name: str) -> None:
    container = container_named(name)
    (port,) = container["ports"]
    args = container["args"]
    assert args[args.index("--port") + 1] == str(port["containerPort"])
    assert args[args.index("--host") + 1] == "0.0.0.0"  # noqa: S104  # inside its pod
    assert {"secretRef": {"name": f"leftfold-{name}"}} in container["envFrom"], "else it does not start"
    probes = [container["readinessProbe"], container["livenessProbe"]]
    assert {(probe.get("httpGet") or probe["tcpSocket"])["port"] for probe in probes} == {port["name"]}


def test_a_gateway_has_longer_to_end_than_its_requests() -> None:
    container = container_named("gateway")
    _, pause = container["lifecycle"]["preStop"]["exec"]["command"]
    closing = signature(KafkaClient.close).parameters["timeout"].default
    assert container["grace"] > int(pause) + _LINGER_SECONDS + _DRAIN_SECONDS + closing
    (unit,) = re.findall(r"```ini\n(.*?)```", SERVING, re.DOTALL)
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    assert int(settings["TimeoutStopSec"]) > _LINGER_SECONDS + _DRAIN_SECONDS + closing
    assert int(settings["TimeoutStopSec"]) > signature(Supervisor).parameters["grace"].default
    assert settings["RestartPreventExitStatus"].split() == ["2", str(ConfigurationError.exit_code)]


def test_the_image_is_the_same_everywhere() -> None:
    images = {container["image"] for container in containers()} | set(
        re.findall(r"registry\.example/\S+?:[\d.]+\d", TEXT)
    )
    assert images == {"registry.example/leftfold:0.1.0"}


def test_kafka_gets_the_settings_that_keep_a_log() -> None:
    (block,) = re.findall(r"```properties\n(.*?)```", TEXT, re.DOTALL)
    reported = dict(line.split("=") for line in block.splitlines())
    assert reported["default.replication.factor"] == reported["transaction.state.log.replication.factor"] == "3"
    assert (reported["min.insync.replicas"], reported["unclean.leader.election.enable"]) == ("2", "false")
