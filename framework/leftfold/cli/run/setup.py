"""`leftfold new` and `leftfold topics`: create a project, the topics of an App, and the rights of its users."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from leftfold.cli.options import AppsOption, JsonOption, KafkaOption, examples, given_options
from leftfold.errors import ConfigurationError
from leftfold.model.app import App
from leftfold.model.rights import ROLES, Right, redis_rules, rights_of
from leftfold.runtime.connect import kafka_settings
from leftfold.runtime.console import amount, emit, note, say, table
from leftfold.runtime.project import Usage, find_project, load_app, load_apps

__all__ = ["EXAMPLES", "User", "grant", "new", "print_rights", "topics", "users_of"]


@dataclass
class User:
    """A user of a part of a service: its rights in Kafka, and the views that it needs in Redis."""

    name: str
    roles: list[str] = field(default_factory=list)
    rights: list[Right] = field(default_factory=list)
    views: set[str] = field(default_factory=set)

    @property
    def parts(self) -> str:
        """The parts that log in as this user."""
        return ", ".join(self.roles)

    @property
    def in_redis(self) -> str:
        """The Redis command that creates the user; the password is set separately."""
        return f"ACL SETUSER {self.name} on {redis_rules(self.roles, sorted(self.views))}"


def users_of(apps: Iterable[App], roles: Iterable[str], template: str) -> list[User]:
    """The users that these Apps need; users without any right are left out.

    Raises:
        ConfigurationError: there is no such part, or the template names something else than an App and a part.
    """
    apps, found = list(apps), dict[str, User]()
    for role in roles:
        if role not in ROLES:
            raise ConfigurationError(f"there is no part {role!r}; there are {', '.join(ROLES)}")
        for app in apps:
            try:
                name = template.format(app=app.name, part=role)
            except (KeyError, IndexError, ValueError) as error:
                why = "names more than {app} and {part}, such as 'svc-{app}-{part}'"
                raise ConfigurationError(f"--user {template!r} {why}") from error
            if rights := rights_of(app, role, answers=apps):
                user = found.setdefault(name, User(name))
                user.roles.append(role)
                user.rights += [right for right in rights if right not in user.rights]
                user.views |= {view.name for view in app.views}
    return list(found.values())


def print_rights(users: Iterable[User], apply: str, *, as_json: bool) -> None:
    """Prints the commands that grant the rights, or the rights as JSON; `apply` is the command that grants all."""
    for user in users:
        if as_json:
            for right in user.rights:
                emit({"user": user.name, "part": user.parts, **_row(right)})
            emit({"user": user.name, "part": user.parts, "kind": "redis", "rules": user.in_redis})
            continue
        say(f"# {user.name}")
        for right in user.rights:
            say(shlex.join(["kafka-acls", "--add", *_arguments(user.name, right)]))
        say(shlex.join(["redis-cli", *user.in_redis.split()]))
    if not as_json:
        note(f"kafka-acls needs --bootstrap-server and a login; or grant all this in Kafka with: {apply}")


def grant(users: list[User], kafka: str | None, *, as_json: bool) -> None:
    """Grants missing rights in Kafka, and names further rights that these users have."""
    from leftfold.kafka.administration.acls import Acls

    wanted = {user.name: user.rights for user in users}
    with Acls(kafka_settings(kafka)) as acls:
        missing: Mapping[str, list[Right]] = acls.missing(wanted)
        besides: Mapping[str, list[str]] = acls.besides(wanted)
        acls.grant(missing)
    for user in users:
        new, more = len(missing[user.name]), besides[user.name]
        if as_json:
            emit(
                {
                    "user": user.name,
                    "part": user.parts,
                    "granted": new,
                    "had": len(user.rights) - new,
                    "besides": more,
                }
            )
            continue
        say(f"{user.name}: {amount(new, 'right')} granted, {len(user.rights) - new} there already")
        for line in more:
            note(f"{user.name} may do more: {line}")


def _row(right: Right) -> dict[str, Any]:
    return {
        "kind": right.kind,
        "name": right.name,
        "pattern": "prefixed" if right.prefixed else "literal",
        "operations": list(right.operations),
    }


def _arguments(user: str, right: Right) -> list[str]:
    operations = [word for operation in right.operations for word in ("--operation", operation)]
    pattern = ["--resource-pattern-type", "prefixed"] if right.prefixed else []
    return ["--allow-principal", f"User:{user}", *operations, f"--{right.kind}", right.name, *pattern]


EXAMPLES = examples(
    "leftfold new shop",
    "cd shop && pytest && leftfold dev",
    "leftfold new cinema --category bookings --key booking     the same service in other words",
    "leftfold new cinema --empty                               without a domain, with an empty App",
)


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the directory, the package and the App.")],
    category: Annotated[
        str, typer.Option("--category", metavar="WORD", help="Category of its service; else carts.")
    ] = "",
    key: Annotated[
        str, typer.Option("--key", metavar="WORD", help="Name of one of them; else the category without its s.")
    ] = "",
    empty: Annotated[bool, typer.Option("--empty", help="Without a domain: an empty App.")] = False,
) -> None:
    """Write a project to begin with.

    It passes its own tests and runs: one package with events, a service and two views. No existing file is overwritten.
    """
    from leftfold.cli.run.check import compared
    from leftfold.cli.scaffold import write_project

    if empty and (category or key):
        raise Usage("--empty writes no service, so --category and --key have nothing to name; leave them out")
    written = write_project(name, Path.cwd(), category=category, key=key, empty=empty)
    project = find_project(Path.cwd() / name)
    compared(load_app("", project), project.lock, write=True)
    for path in [*written, project.lock]:
        say(str(path.relative_to(Path.cwd())))
    note(f"{amount(len(written) + 1, 'file')}; next: cd {name}, pytest, leftfold dev")


topics = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List or create the topics of Apps, and grant rights to them."
)


@topics.command("list", epilog=examples("leftfold topics list"))
def list_(app: AppsOption = None, kafka: KafkaOption = None, as_json: JsonOption = False) -> None:
    """List the topics of Apps, created or not."""
    from leftfold.kafka.administration.cluster import ClusterAdmin
    from leftfold.kafka.administration.topics import topics_of

    apps = load_apps(app or []).values()
    wanted = [topic for one in apps for topic in topics_of(one)]
    with ClusterAdmin(kafka_settings(kafka)) as cluster:
        there: dict[str, int] = cluster.partition_counts([topic.name for topic in wanted])
        replicas, most = cluster.replica_counts(there), cluster.wanted_replicas()
    rows: list[dict[str, Any]] = [
        {
            "topic": t.name, "partitions": there.get(t.name), "wanted": t.partitions,
            "replicas": replicas.get(t.name), "wanted_replicas": most,
        }
        for t in wanted
    ]  # fmt: skip
    if as_json:
        emit(*rows)
    else:
        absent = {"partitions": "not made yet", "replicas": ""}
        shown = [row if row["partitions"] else row | absent for row in rows]
        table(shown, ("topic", "partitions", "wanted", "replicas", "wanted_replicas"))


@topics.command(epilog=examples("leftfold topics ensure --app services.baskets.app:app"))
def ensure(app: AppsOption = None, kafka: KafkaOption = None) -> None:
    """Create missing topics and check the others.

    `leftfold run` does the same when it starts.
    """
    from leftfold.kafka.administration.topics import topics_of
    from leftfold.runtime.lifecycle import ensure_topics

    apps = load_apps(app or []).values()
    ensure_topics(apps, kafka_settings(kafka))
    names = sorted(topic.name for one in apps for topic in topics_of(one))
    say(f"{amount(len(names), 'topic')} as they should be: {', '.join(names)}")


@topics.command(
    epilog=examples(
        "leftfold topics acl                          what each part needs, as kafka-acls and redis-cli take it",
        "leftfold topics acl worker client            two of them",
        "leftfold topics acl --user 'svc-{app}-{part}'    for users with such names",
        "leftfold topics acl --apply                  grant it, with the login of the settings",
    )
)
def acl(
    context: typer.Context,
    part: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(ROLES)}; else all.")] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="Users' names; with {app} and {part} in it.")] = "{part}",
    apply: Annotated[bool, typer.Option("--apply", help="Grant in Kafka what is missing.")] = False,
    app: AppsOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print or grant the rights that each part needs.

    These are the least rights in Kafka and in Redis; --apply grants those in Kafka.

    No right is revoked: further rights of a user are named. Processes of several Apps that send commands to each other,
    and clients of one App that send to another, are known when all these Apps are given at once.
    """
    users = users_of(load_apps(app or []).values(), part or ROLES, user)
    if apply:
        grant(users, kafka, as_json=as_json)
    else:
        words = [*(part or ()), *given_options(context), "--apply"]
        print_rights(users, shlex.join(["leftfold", "topics", "acl", *words]), as_json=as_json)
