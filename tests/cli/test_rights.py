"""The journey on servers that want a login: each part with the least rights that `leftfold topics acl` names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

import httpx
import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclBindingFilter  # type: ignore[attr-defined]  # exported implicitly
from pydantic import SecretStr

from leftfold.errors import ConfigurationError, OutcomeUnknown
from leftfold.kafka.administration.acls import Acls, _bindings
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker import transaction_log
from leftfold.local import LocalSettings, Servers, embedded
from leftfold.model import keys as names
from leftfold.model.rights import ADMIN, ROLES, Right, redis_rules, rights_of
from tests.cli.guild import HEARD, app
from tests.cli.shell import ROOT, Shell, Typed, running
from tests.free_ports import free_port, listens
from tests.process.alarms import Ring, Wind
from tests.waiting import wait_until
from tests.worker.bank import bank

pytestmark = pytest.mark.servers

SECONDS = 240.0
APP = "tests.cli.guild:app"
HERE = {"PYTHONPATH": f"{ROOT / 'framework'}:{ROOT}"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Secure servers, on which every part has its rights, with an event and a dead letter in the log."""
    place = tmp_path_factory.mktemp("secure")
    with embedded(place / "data", settings=LocalSettings(secure=True)) as servers:
        settings = kafka_of(servers, ADMIN)
        ensure(app, settings)
        with Acls(settings) as acls:
            grant(acls, {role: rights_of(app, role) for role in ROLES})
        producer = Producer(settings.librdkafka())
        for topic in ("bells.commands", "watch.commands"):
            producer.produce(topic, b"no command", b"b")
        assert producer.flush(SECONDS) == 0
        with running_as(servers, place / "worker", "worker", "bells"):
            result = Shell(place, HERE | environment(servers, "client"))(
                "send", "Wind", '{"bell": "b", "at": "2020-01-01T00:00:00Z"}', "--app", APP, "--timeout", str(SECONDS)
            )
            assert result.code == 0, result
            with KafkaClient(app.name, kafka_of(servers, "client")) as client:
                client.send(Ring(bell="b"), timeout=SECONDS)
        yield servers


def environment(servers: Servers, role: str) -> dict[str, str]:
    """What `leftfold up --secure` writes for a role, read as a shell reads it."""
    lines = shlex.split((servers.data / "secure" / f"{role}.env").read_text("utf-8"))
    return dict(line.split("=", 1) for line in lines)


def kafka_of(servers: Servers, role: str) -> KafkaSettings:
    """How a role reaches Kafka."""
    begin, found = "LEFTFOLD_KAFKA_", environment(servers, role)
    return KafkaSettings.model_validate({k.removeprefix(begin).lower(): v for k, v in found.items() if begin in k})


def redis_of(servers: Servers, role: str) -> redis.Redis:
    """A connection of a role to Redis, over TLS."""
    result = environment(servers, role)
    return redis.Redis.from_url(
        result["LEFTFOLD_REDIS_URL"],
        password=result["LEFTFOLD_REDIS_PASSWORD"],
        ssl_ca_certs=result["LEFTFOLD_REDIS_CA_FILE"],
    )


def test_a_login_without_rights_gets_an_error_that_says_so_and_one_with_them_is_served(servers: Servers) -> None:
    own = bank("rights").app  # of its own, to which nothing is granted yet
    with pytest.raises(ConfigurationError, match="cluster's ACLs"):
        ensure(own, kafka_of(servers, "deployer"))
    with Acls(kafka_of(servers, ADMIN)) as acls:
        wanted = {role: rights_of(own, role) for role in ROLES}
        missing = acls.missing(wanted)
        assert {role for role in ROLES if missing[role]} == {role for role in ROLES if wanted[role]}
        grant(acls, wanted)
        assert not any(acls.missing(wanted).values())
        assert not any(acls.besides({role: [*wanted[role], *rights_of(app, role)] for role in ROLES}).values())
        assert acls.besides({"deployer": wanted["deployer"][1:]})["deployer"]
    made = ensure(own, kafka_of(servers, "deployer"))
    assert made[names.commands(own.deciders[0].name)] == own.partitions
    with pytest.raises(ConfigurationError, match="cluster's ACLs"):
        ensure(bank("others").app, kafka_of(servers, "deployer"))
    KafkaClient(own.name, kafka_of(servers, "client")).close()


def test_kafka_and_redis_let_no_client_in_without_a_login(servers: Servers) -> None:
    admin = kafka_of(servers, ADMIN)
    wrong = admin.model_copy(update={"sasl_password": SecretStr("guessed")})
    with Acls(wrong) as acls, pytest.raises(ConfigurationError) as raised:
        acls.besides({"worker": []})
    assert "Authentication failed" in str(raised.value)
    assert "guessed" not in str(raised.value)
    result = environment(servers, "projector")
    with (
        redis.Redis.from_url(result["LEFTFOLD_REDIS_URL"], ssl_ca_certs=result["LEFTFOLD_REDIS_CA_FILE"]) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()
    with (
        redis.Redis.from_url(result["LEFTFOLD_REDIS_URL"], password=result["LEFTFOLD_REDIS_PASSWORD"]) as client,
        pytest.raises(redis.ConnectionError, match="certificate verify failed"),
    ):
        client.ping()


def test_readers_of_views_cannot_write_them_and_writers_nothing_else(servers: Servers) -> None:
    with redis_of(servers, "client") as reader, redis_of(servers, "projector") as writer:
        writer.hset("view:sums", "a", "1")
        assert reader.hgetall("view:sums") == {b"a": b"1"}
        for refused in ("HSET view:sums a 2", "FLUSHALL", "KEYS *", "ZADD members:tails:sums:1 1 m", "GET other"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                reader.execute_command(*refused.split())
        for refused in ("SET other 1", "FLUSHALL", "ACL LIST", "SCRIPT LOAD x"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                writer.execute_command(*refused.split())
        assert writer.delete("view:sums") == 1


@pytest.mark.parametrize("role", ["worker", "process"])
def test_a_worker_may_look_for_what_a_broker_forgot(servers: Servers, role: str) -> None:
    """A decided transaction of the bells, in the brokers' log of transactions, and the topics where workers send."""
    reads = {"group.id": "leftfold.reader.rights", "enable.partition.eof": True, "isolation.level": "read_uncommitted"}
    consumer = Consumer({**kafka_of(servers, role).librdkafka(), **reads})
    with closing(consumer):
        (id_, *_) = transaction_log.transactional_ids(consumer, "guild.bells.", (names.events("bells"), 0), 0)
        found = transaction_log.outcomes_of(consumer, id_, [("bells.events", 0)])
        assert found == {("bells.events", 0): transaction_log.TransactionOutcome.COMMIT}
        for topic in map(names.commands, app.receivers_of("bells" if role == "worker" else "watch")):
            place = TopicPartition(topic, 0)
            end = consumer.get_watermark_offsets(place, timeout=SECONDS)[1]
            assert end, "a record that may be read"
            records = transaction_log.records_between(consumer, place, 0, end, SECONDS)
            assert [message.error() for message in records] == [None] * end


def test_only_their_owner_reads_the_files_of_secure_servers(servers: Servers) -> None:
    for file in (servers.data / "secure").iterdir():
        assert file.stat().st_mode & 0o077 == 0, file


def typed_as(servers: Servers, role: str, place: Path, words: str) -> Typed:
    """What comes of a command with the login of a role; what runs on has a process of its own."""
    shell = Shell(place, HERE | environment(servers, role))
    return (shell.apart if words.startswith("run ") else shell)(*words.split())


@contextmanager
def running_as(servers: Servers, place: Path, role: str, *words: str, **more: str) -> Iterator[Shell]:
    """`leftfold run` with the login of a role, and more in its environment, until the block ends."""
    place.mkdir()
    shell = Shell(place, HERE | environment(servers, role) | more)
    with running(shell, "run", *words, "--app", APP):
        yield shell


@pytest.mark.faults
def test_each_part_has_all_it_needs_and_asks_for_no_more(servers: Servers, tmp_path: Path) -> None:
    log = servers.data / "kafka" / "logs" / "server.log"

    def typed(role: str, *words: str) -> Typed:
        return Shell(tmp_path, HERE | {"LEFTFOLD_APP": APP} | environment(servers, role))(*words).ok()

    begin, heard = len(log.read_bytes()), tmp_path / "heard"
    typed("deployer", "topics", "ensure")
    with (
        running_as(servers, tmp_path / "worker", "worker", "bells") as worker,
        running_as(servers, tmp_path / "process", "process", "watch") as process,
        running_as(servers, tmp_path / "reaction", "reaction", "herald", **{HEARD: str(heard)}) as reaction,
        running_as(servers, tmp_path / "projector", "projector", "wound") as projector,
    ):
        worker.wait_said("serving")
        process.wait_said("serving", "routing")
        reaction.wait_said("reacting")
        projector.wait_said("following")
        result = typed("client", "send", "Wind", '{"bell": "journey", "at": "2020-01-01T00:00:00Z"}', "--json")
        assert result.rows(), result
        wait_until(lambda: heard.exists() and "journey" in heard.read_text("utf-8"), "the reaction acts")
        assert typed("client", "get", "wound", "journey", "--json").rows()[0]["row"]["times"] == 1
        assert [row["workers"] for row in typed("console", "status", "--json").rows() if row.get("kind") == "decider"]
        check_gateway(servers, tmp_path / "gateway")
    assert typed("rebuild", "log", "archive", "bells", "--to", "kept", "--json").rows()[0]["records"]
    assert "events" in typed("rebuild", "rebuild", "wound", "--engine", "spark", "--archive", "kept").err
    (row,) = typed("rebuild", "log", "sql", "SELECT bell FROM Rang WHERE bell = 'journey'", "--json").rows()
    assert row["bell"] == "journey"
    others = [("rebuild", "plan wound", 0), ("rebuild", "verify wound", 0), ("console", "events bells --json", 0)]
    # There are dead letters, and nothing decides.
    for role, words, code in [*others, ("console", "dead list bells --json", 1), ("console", "doctor --json", 1)]:
        result = Shell(tmp_path, HERE | {"LEFTFOLD_APP": APP} | environment(servers, role))(*words.split())
        assert not re.search("(?i)authorization ?failed|denies user", result.out + result.err), result
        assert result.code == code, result
    assert [line for line in log.read_bytes()[begin:].decode().splitlines() if "is Denied" in line] == []


def check_gateway(servers: Servers, place: Path) -> None:
    """A gateway is ready, sends a command, and reads a row and the events of a stream."""
    place.mkdir()
    shell, port = Shell(place, HERE | environment(servers, "gateway")), free_port()
    with running(shell, "serve", "--port", str(port), "--app", APP), httpx.Client(timeout=SECONDS) as http:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: listens(port) and http.get(f"{url}/health/ready").status_code == 200, shell.said)
        body = {"bell": "gateway", "at": "2020-01-01T00:00:00Z"}
        answer = http.post(f"{url}/commands/bells/Wind", json=body).raise_for_status()
        after = {"after": answer.headers["Leftfold-Position"], "timeout": "60"}
        assert http.get(f"{url}/views/wound/gateway", params=after).status_code == 200
        assert "Wound" in http.get(f"{url}/streams/bells/gateway").raise_for_status().text


@dataclass(frozen=True)
class Less:
    """What a part is typed as, the right that is taken from it, and what has to have happened before it is missed.

    Args:
        provoked: what `provoke` leaves to be done.
        codes: how it may end. A client says 75 where what it sent may still be decided, and whether its producer hears
            first that it may not write, or that it gets no id, is Kafka's to say.
        is_named: False where Kafka names nothing: to a client that may write no topic at all, nor of answers.
    """

    role: str
    words: str
    kind: str
    name: str
    operation: str
    provoked: str = ""
    codes: tuple[int, ...] = (ConfigurationError.exit_code,)
    is_named: bool = True

    def __str__(self) -> str:
        return f"{self.role} ({self.words.partition(' --app')[0]}) without {self.operation} on {self.kind} {self.name}"


RUN = {role: f"run {name} --app {APP}" for role, name in
       {"worker": "bells", "process": "watch", "reaction": "herald", "projector": "wound"}.items()}  # fmt: skip
MUTE = f"run mute --app {APP}"
SEND = f'send Ring {{"bell":"b"}} --timeout 20 --app {APP}'
LESS = [
    Less("client", SEND, "topic", "bells.commands", "Write", codes=(75, 78), is_named=False),
    Less("client", SEND, "topic", "guild.replies", "Read", codes=(75,), is_named=False),
    Less("console", "events bells", "topic", "bells.events", "Read"),
    Less("console", "dead list bells", "topic", "bells.dead", "Read"),
    Less("deployer", f"topics ensure --app {APP}", "topic", "bells.events", "AlterConfigs"),
    Less("rebuild", f"rebuild wound --engine local --app {APP}", "topic", "bells.events", "Read"),
    Less("rebuild", "log archive bells --to kept", "topic", "bells.events", "Read"),
    Less("worker", RUN["worker"], "topic", "bells.events", "Write", "command"),
    Less("worker", RUN["worker"], "transactional-id", "guild.bells.", "Write"),
    Less("worker", RUN["worker"], "group", "leftfold.guild.bells", "Read"),
    Less("process", RUN["process"], "topic", "bells.events", "Read"),
    Less("reaction", RUN["reaction"], "topic", "bells.events", "Read"),
    Less("projector", RUN["projector"], "topic", "bells.events", "Read"),
]
RARELY = [
    Less("worker", RUN["worker"], "topic", "bells.commands", "Read"),
    Less("worker", RUN["worker"], "topic", "bells.state.", "Write", "command"),
    Less("worker", RUN["worker"], "topic", "bells.dead", "Write", "dead letter"),
    Less("worker", RUN["worker"], "topic", "guild.replies", "Write", "command"),
    Less("process", RUN["process"], "topic", "watch.commands", "Read"),
    Less("process", RUN["process"], "topic", "watch.commands", "Write"),
    Less("process", RUN["process"], "topic", "watch.time", "Write"),
    Less("process", RUN["process"], "group", names.routing("guild", "watch"), "Read"),
    Less("process", RUN["process"], "topic", "bells.commands", "Write", "timer"),
    Less("process", RUN["process"], "topic", "watch.state.", "Write", "timer"),
    Less("process", RUN["process"], "topic", "watch.dead", "Write", "dead input"),
    Less("process", RUN["process"], "transactional-id", "guild.watch.", "Write"),
    Less("process", RUN["process"], "group", "leftfold.guild.watch", "Read"),
    Less("rebuild", f"rebuild wound --engine spark --app {APP}", "topic", "bells.events", "Read"),
    Less("reaction", RUN["reaction"], "group", names.reacting("guild", "herald"), "Read"),
    Less("reaction", MUTE, "topic", "mute.begun", "Write"),
    Less("reaction", MUTE, "topic", "mute.dead", "Write"),
]
"""The same at other places of a part, or what takes longer to show: part of the campaign of faults."""


def grant(acls: Acls, rights: Mapping[str, Sequence[Right]]) -> None:
    """Grants rights to users; the broker has them behind its controller only."""
    acls.grant(rights)
    wait_until(lambda: not any(acls.missing(rights).values()), "the rights")


def revoke(acls: Acls, user: str, rights: Sequence[Right]) -> None:
    """Revokes rights of a user, in the broker as well."""
    fields = attrgetter(
        "restype", "name", "resource_pattern_type", "principal", "host", "operation", "permission_type"
    )  # fmt: skip
    filters = [AclBindingFilter(*fields(one)) for right in rights for one in _bindings(user, right)]
    for future in acls._admin.delete_acls(filters).values():
        future.result(SECONDS)
    wait_until(lambda: acls.missing({user: rights})[user] == list(rights), "their end")


@pytest.mark.parametrize("less", [*LESS, *(pytest.param(one, marks=pytest.mark.faults) for one in RARELY)], ids=str)
def test_a_part_with_one_right_less_says_what_is_missing(servers: Servers, tmp_path: Path, less: Less) -> None:
    provoke(servers, tmp_path, less.provoked)
    with Acls(kafka_of(servers, ADMIN)) as acls:
        # Read and Write grant Describe as well.
        needed = [right for right in rights_of(app, less.role) if (right.kind, right.name) == (less.kind, less.name)]
        grant(acls, {less.role: [replace(right, operations=("Describe",)) for right in needed]})
        taken = [replace(right, operations=(less.operation,)) for right in needed if less.operation in right.operations]
        assert taken
        revoke(acls, less.role, taken)
        try:
            result = typed_as(servers, less.role, tmp_path, less.words)
        finally:
            grant(acls, {less.role: taken})
    said = result.out + result.err
    assert re.search("(?i)authorization ?failed", said), result
    assert "ACLs" in said, result
    assert less.name in said or not less.is_named, result
    assert result.code in less.codes, result


@pytest.mark.parametrize(("words", "code"), [("status", 0), ("doctor", 1), ("dead list bells", 1)])
def test_settings_that_a_login_may_not_see_are_named_and_everything_else_is_shown(
    servers: Servers, tmp_path: Path, words: str, code: int
) -> None:
    """Nothing decides, which `doctor` finds wrong, and a dead letter waits."""
    topic = names.dead("bells")
    mine = [right for right in rights_of(app, "console") if right.name == topic]
    taken = [replace(right, operations=("DescribeConfigs",)) for right in mine if "DescribeConfigs" in right.operations]
    assert taken
    with Acls(kafka_of(servers, ADMIN)) as acls:
        revoke(acls, "console", taken)
        try:
            result = Shell(tmp_path, HERE | {"LEFTFOLD_APP": APP} | environment(servers, "console"))(*words.split())
        finally:
            grant(acls, {"console": taken})
    assert f"the settings of {topic} cannot be seen" in result.out + result.err, result
    assert "DescribeConfigs there, as these lines do: leftfold topics acl console" in result.out + result.err
    assert "bells" in result.out
    assert result.code == code, result


def provoke(servers: Servers, place: Path, what: str) -> None:
    """Leaves something to be done behind."""
    if what in {"command", "timer"}:
        with KafkaClient(app.name, kafka_of(servers, "client")) as client:
            if what == "timer":
                with running_as(servers, place / "worker", "worker", "bells"):
                    client.send(Wind(bell="b", at=datetime(2020, 1, 1, tzinfo=UTC)), timeout=SECONDS)
            else:
                with pytest.raises(OutcomeUnknown):
                    client.send(Ring(bell="b"), timeout=0.1)
    elif what:
        producer = Producer(kafka_of(servers, ADMIN).librdkafka())
        producer.produce("bells.commands" if what == "dead letter" else "watch.commands", b"no command", b"b")
        assert producer.flush(SECONDS) == 0


LESS_IN_REDIS = [
    # role, what is typed, its rights instead, what is denied, and the exit code (`status` shows what it can)
    ("projector", RUN["projector"], "-@write", "[A-Z]+ .*no permissions to run", 78),
    ("projector", RUN["projector"], redis_rules(["projector"], ["another"]), "[A-Z]+ (view|members:tails):wound", 78),
    ("client", f"get wound b --app {APP}", "-@read", "HGETALL", 78),
    ("console", f"status --app {APP}", "-@read", "HGETALL", 69),
]


@pytest.mark.parametrize(("role", "words", "rules", "denied", "code"), LESS_IN_REDIS)
def test_a_part_with_less_rights_in_redis_ends_and_says_what_is_missing(
    servers: Servers, tmp_path: Path, role: str, words: str, rules: str, denied: str, code: int
) -> None:
    with redis_of(servers, ADMIN) as admin:
        admin.execute_command("ACL", "SETUSER", role, *rules.split())
        try:
            result = typed_as(servers, role, tmp_path, words)
        finally:
            admin.execute_command("ACL", "SETUSER", role, *redis_rules([role]).split())
    said = result.out + result.err
    assert re.search(f"denies user '{role}' a right: {denied}", said), result
    assert result.code == code, result
    assert environment(servers, role)["LEFTFOLD_REDIS_PASSWORD"] not in said


def test_rights_are_printed_as_the_tools_of_kafka_and_redis_take_them(tmp_path: Path) -> None:
    result = Shell(tmp_path, HERE)("topics", "acl", "worker", "--app", APP, "--user", "svc-{app}-{part}")
    assert re.search(r"kafka-acls --add --allow-principal User:svc-\S+-worker --operation ", result.out)
    assert "redis-cli ACL SETUSER svc-" in result.out
    Shell(tmp_path, HERE)("topics", "acl", "cook", "--app", APP).ended(78, "there is no part 'cook'")
    assert "zadd" not in redis_rules(["client"])
