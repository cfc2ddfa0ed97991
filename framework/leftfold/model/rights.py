"""The least rights that each role of an App needs, for the ACLs of Kafka and of Redis."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from leftfold.model import keys as names
from leftfold.model.app import App

__all__ = ["ADMIN", "ROLES", "Right", "redis_rules", "rights_of"]

ADMIN = "admin"
"""The role with all rights."""

_ANYBODY = "-@all +auth +hello +ping +select +reset"
_READER = "+@read -@dangerous +info +role +time +cluster|slots +asking +multi +exec +discard +subscribe +unsubscribe"
_WRITER = _READER.replace("+@read", "+@read +@write") + " +watch +unwatch +publish"

_TRANSACTION_LOG = "__transaction_state"

_IMPLIED = (("Read", "Describe"), ("Write", "Describe"), ("AlterConfigs", "DescribeConfigs"))
"""Operations that Kafka grants with the first of each pair."""


@dataclass(frozen=True, order=True)
class Right:
    """One right of a role in Kafka: a resource and the operations on it.

    Args:
        kind: `topic`, `group` or `transactional-id`.
        name: of the resource, or its prefix when `prefixed`.
        operations: in the words of `kafka-acls`: Read, Write, Describe, DescribeConfigs, Create, AlterConfigs.
    """

    role: str
    kind: str
    name: str
    prefixed: bool
    operations: tuple[str, ...]


class _Rights:
    """A collection of a role's rights without duplicates."""

    def __init__(self, role: str) -> None:
        self.role, self._found = role, dict[tuple[str, str, bool], set[str]]()

    def add(self, kind: str, name: str, *operations: str, prefixed: bool = False) -> None:
        self._found.setdefault((kind, name, prefixed), set()).update(operations)

    def topics(self, topics: Iterable[str], *operations: str) -> None:
        for topic in topics:
            self.add("topic", topic, *operations)

    def __iter__(self) -> Iterator[Right]:
        for (kind, name, prefixed), operations in sorted(self._found.items()):
            implied = {less for more, less in _IMPLIED if more in operations}
            yield Right(self.role, kind, name, prefixed, tuple(sorted(operations - implied)))


def rights_of(app: App, role: str, *, answers: Iterable[App] = ()) -> list[Right]:
    """The rights that a role needs in Kafka for an App; none where the App has no such part.

    Args:
        role: one of ROLES. answers: further Apps whose clients send commands to this one and wait for its answers.
    """
    found = _Rights(role)
    _OF_ROLE[role](app, found)
    if not any(found):
        return []
    if role in _READING:
        # librdkafka looks up the group coordinator for every consumer, though these join no group.
        found.add("group", "leftfold.reader.", "Describe", prefixed=True)
    if role in _RUNNING:
        found.topics(_owned(app), "Describe", "DescribeConfigs")
    if role == "worker":
        found.topics((names.replies(one.name) for one in (app, *answers)), "Write", "Describe")
    return list(found)


def redis_rules(roles: Collection[str], views: Iterable[str] = ("*",)) -> str:
    """The rights of a user in Redis, in the syntax of `ACL SETUSER` behind `on` and the password.

    Args:
        roles: of ROLES, or ADMIN. views: the names of the views it may use; all of them by default.
    """
    if ADMIN in roles:
        return "~* &* +@all"
    rules = {_IN_REDIS[role] for role in roles if role in _IN_REDIS}
    if not rules:
        return f"resetkeys resetchannels {_ANYBODY}"
    keys = [f"~view:{view} ~v:{{{view}:* ~members:*:{view} ~members:*:{view}:*" for view in views]
    channels = [f"&v:{{{view}:*" for view in views]
    most = max(rules, key=len)  # those of a writer hold those of a reader
    return " ".join(["resetkeys", "resetchannels", *keys, *channels, _ANYBODY, most])


def _client(app: App, to: _Rights) -> None:
    to.topics((names.commands(decider.name) for decider in app.deciders), "Write", "Describe")
    to.add("topic", names.replies(app.name), "Read", "Describe")
    to.add("group", f"leftfold.{app.name}.", "Describe", prefixed=True)
    to.add("group", "leftfold.replies.", "Describe", prefixed=True)


def _worker(app: App, to: _Rights) -> None:
    for decider in app.deciders:
        name = decider.name
        _works(app, name, to)
        to.topics([names.events(name)], "Read", "Write", "Describe", "DescribeConfigs")
        to.topics(map(names.commands, app.receivers_of(name)), "Read", "Write")
        to.topics([names.skipped(name)], "Read", "Describe")


def _process(app: App, to: _Rights) -> None:
    """The rights of the worker and the router of a process."""
    for process in app.processes:
        _works(app, process.name, to)
        to.topics(map(names.commands, app.receivers_of(process.name)), "Read", "Write")
        to.topics(map(names.events, process.categories), "Read", "Describe")
        to.topics([names.commands(process.name)], "Write", "Describe")
        to.topics([names.time(process.name)], "Read", "Write", "Describe")
        to.add("group", names.routing(app.name, process.name), "Read", "Describe")


def _works(app: App, name: str, to: _Rights) -> None:
    """The rights of a worker of a category or process: read input, decide in transactions, read back its output.

    Where it sends, and in the log of transactions, it reads to end what a broker forgot.
    """
    to.topics([names.commands(name)], "Read", "Describe", "DescribeConfigs")
    to.topics([names.dead(name)], "Read", "Write", "Describe", "DescribeConfigs")
    to.add("topic", f"{name}.state.", "Read", "Write", "Describe", "DescribeConfigs", prefixed=True)
    to.add("group", names.group(app.name, name), "Read", "Describe")
    to.add("transactional-id", f"{app.name}.{name}.", "Write", "Describe", prefixed=True)
    to.add("topic", _TRANSACTION_LOG, "Read")


def _reaction(app: App, to: _Rights) -> None:
    for reaction in app.reactions:
        to.topics(map(names.events, reaction.categories), "Read", "Describe")
        to.topics([names.dead(reaction.name), names.begun(reaction.name)], "Read", "Write", "Describe")
        to.add("transactional-id", f"leftfold.{names.dead(reaction.name)}", "Write", "Describe")
        to.add("group", names.reacting(app.name, reaction.name), "Read", "Describe")


def _stream(app: App, to: _Rights) -> None:
    for stream in app.streams:
        begin = names.streaming(app.name, stream.name)
        to.topics(map(names.events, stream.categories), "Read", "Describe")
        to.add("group", begin, "Read", "Describe", prefixed=True)
        to.add("topic", f"{begin}", "Create", "Read", "Write", "Describe", "DescribeConfigs", prefixed=True)


def _projector(app: App, to: _Rights) -> None:
    """The rights of a projector: to read the events of its views."""
    read = {category for view in app.views for category in view.categories}
    to.topics(map(names.events, read), "Read", "Describe", "DescribeConfigs")


def _reader(app: App, to: _Rights) -> None:
    """The rights of a rebuild, an archive or a SQL query: to read events, and nothing else of the brokers."""
    read = {decider.name for decider in app.deciders}.union(*(view.categories for view in app.views))
    to.topics(map(names.events, read), "Read", "Describe", "DescribeConfigs")


def _gateway(app: App, to: _Rights) -> None:
    """The rights of a client that also reads events: those of streams, of searches and of readiness."""
    _client(app, to)
    _reader(app, to)


def _console(app: App, to: _Rights) -> None:
    for topic in _owned(app):
        to.topics([topic], "Read", "Describe", "DescribeConfigs")
    _reader(app, to)
    to.add("group", f"leftfold.{app.name}.", "Describe", prefixed=True)


def _deployer(app: App, to: _Rights) -> None:
    to.topics(_owned(app), "Create", "Describe", "DescribeConfigs", "AlterConfigs")


def _owned(app: App) -> list[str]:
    """The topics that an App creates."""
    found = [names.replies(app.name)]
    for decider in app.deciders:
        name = decider.name
        found += [names.commands(name), names.events(name), names.state(name, decider.version), names.dead(name)]
    for process in app.processes:
        name = process.name
        found += [names.commands(name), names.state(name, process.version), names.dead(name), names.time(name)]
    for reaction in app.reactions:
        found += [names.dead(reaction.name), names.begun(reaction.name)]
    return found


_OF_ROLE: dict[str, Callable[[App, _Rights], None]] = {
    "client": _client,
    "worker": _worker,
    "process": _process,
    "reaction": _reaction,
    "stream": _stream,
    "projector": _projector,
    "rebuild": _reader,
    "gateway": _gateway,
    "console": _console,
    "deployer": _deployer,
}
_RUNNING = frozenset({"worker", "process", "reaction", "stream", "projector"})
"""The roles that `leftfold run` starts, which first checks the configuration of the topics."""
_READING = _RUNNING | {"rebuild", "gateway", "console", "client"}
_IN_REDIS = {
    **dict.fromkeys(("client", "gateway", "console"), _READER),
    **dict.fromkeys(("projector", "rebuild", "stream"), _WRITER),
}
ROLES = tuple(_OF_ROLE)
"""The parts of a service that log in, each with a user of its own."""
