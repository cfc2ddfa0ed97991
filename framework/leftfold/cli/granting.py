"""The rights of users: printed for those who grant them, or granted."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leftfold.app import App
from leftfold.cli.console import amount, emit, note, say
from leftfold.connection import kafka_settings, ring
from leftfold.errors import ConfigurationError
from leftfold.rights import ROLES, Right, redis_rules, rights_of

__all__ = ["User", "grant", "print_rights", "users_of"]


@dataclass
class User:
    """A user, the part that it is for, what it needs in Kafka, and the views that concern it in Redis."""

    name: str
    role: str
    rights: list[Right] = field(default_factory=list)
    views: list[str] = field(default_factory=list)

    @property
    def in_redis(self) -> str:
        """How Redis is told of it; the password is set apart."""
        return f"ACL SETUSER {self.name} on {redis_rules(self.role, sorted(self.views))}"


def users_of(apps: Iterable[App], roles: Iterable[str], template: str) -> list[User]:
    """The users that these Apps need, those that nothing is granted to left out.

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
                raise ConfigurationError(
                    f"--user {template!r} names more than {{app}} and {{part}}, such as 'svc-{{app}}-{{part}}'"
                ) from error
            rights = rights_of(app, role, answers=apps)
            if rights:
                user = found.setdefault(name, User(name, role))
                user.rights += [right for right in rights if right not in user.rights]
                user.views += [view.name for view in app.views]
    return list(found.values())


def print_rights(users: Iterable[User], *, as_json: bool) -> None:
    """Prints what to type where rights are granted."""
    for user in users:
        if as_json:
            for right in user.rights:
                emit({"user": user.name, "part": user.role, **_row(right)})
            emit({"user": user.name, "part": user.role, "kind": "redis", "rules": user.in_redis})
            continue
        say(f"# {user.name}")
        for right in user.rights:
            say(shlex.join(["kafka-acls", "--add", *_arguments(user.name, right)]))
        say(shlex.join(["redis-cli", *user.in_redis.split()]))
    if not as_json:
        note("kafka-acls needs --bootstrap-server and a login; or grant all this with: leftfold topics acl --apply")


def grant(users: list[User], kafka: str | None, *, as_json: bool) -> None:
    """Grants in Kafka what is missing, and names what these users may do besides."""
    wanted = {user.name: user.rights for user in users}
    with ring("leftfold.kafka.acls").Acls(kafka_settings(kafka)) as acls:
        missing: Mapping[str, list[Right]] = acls.missing(wanted)
        besides: Mapping[str, list[str]] = acls.besides(wanted)
        acls.grant(missing)
    for user in users:
        new, more = len(missing[user.name]), besides[user.name]
        if as_json:
            emit({"user": user.name, "part": user.role, "granted": new, "had": len(user.rights) - new, "besides": more})
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
