"""The ACLs of a cluster: what users are granted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # confluent-kafka exports these implicitly
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from leftfold.errors import ConfigurationError, LeftfoldError
from leftfold.kafka.errors import kafka_error, translated
from leftfold.kafka.logs import QuietLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.rights import Right

__all__ = ["Acls"]

_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}


class Acls:
    """Reads and adds to the ACLs of a cluster; nothing is taken away.

    Raises:
        ConfigurationError: the login may not read or alter them, or the cluster has no authorizer.
        InfrastructureError: no broker answers.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin = AdminClient(settings.librdkafka(), logger=QuietLog("acls"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._admin.poll(0)

    def missing(self, wanted: Mapping[str, Iterable[Right]]) -> dict[str, list[Right]]:
        """Of what users need, what they are not granted in exactly these words."""
        return {
            user: [right for right in rights if not set(_bindings(user, right)) <= self._granted(user)]
            for user, rights in wanted.items()
        }

    def besides(self, wanted: Mapping[str, Iterable[Right]]) -> dict[str, list[str]]:
        """What users are granted and do not need, in words."""
        return {
            user: sorted(map(_words, self._granted(user).difference(*(_bindings(user, right) for right in rights))))
            for user, rights in wanted.items()
        }

    def grant(self, rights: Mapping[str, Iterable[Right]]) -> None:
        """Grants all this, from any host."""
        bindings = [new for user, some in rights.items() for right in some for new in _bindings(user, right)]
        if bindings:
            for future in self._asked("granting rights", self._admin.create_acls, bindings).values():
                self._answer("granting rights", future)

    def _granted(self, user: str) -> set[Any]:
        anything: Any = None
        every = AclBindingFilter(
            ResourceType.ANY, anything, ResourcePatternType.ANY, f"User:{user}", anything, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        doing = f"reading the rights of {user}"
        return set(self._answer(doing, self._asked(doing, self._admin.describe_acls, every)))

    def _asked(self, doing: str, ask: Any, what: Any) -> Any:
        try:
            return ask(what, request_timeout=self._settings.request_timeout)
        except KafkaException as error:
            raise self._translated(error, doing) from error

    def _answer(self, doing: str, future: Any) -> Any:
        try:
            return future.result(4 * self._settings.request_timeout)
        except KafkaException as error:
            raise self._translated(error, doing) from error

    def _translated(self, error: KafkaException, doing: str) -> LeftfoldError:
        if kafka_error(error).code() == KafkaError.SECURITY_DISABLED:
            return ConfigurationError(
                f"{doing}: the brokers at {self._settings.bootstrap_servers} have no authorizer, so everybody may do "
                f"everything; set authorizer.class.name, or try it here: leftfold up --secure"
            )
        return translated(error, doing=doing, brokers=self._settings.bootstrap_servers, advice=self._settings.advice)


def _bindings(user: str, right: Right) -> list[Any]:
    pattern = ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL
    return [
        AclBinding(
            _KINDS[right.kind], right.name, pattern, f"User:{user}", "*", _operation(operation),
            AclPermissionType.ALLOW,
        )
        for operation in right.operations
    ]  # fmt: skip


def _operation(word: str) -> AclOperation:
    return AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).upper()]


def _words(binding: Any) -> str:
    kind, pattern = binding.restype.name.lower(), binding.resource_pattern_type.name.lower()
    return f"{binding.permission_type.name.lower()} {binding.operation.name.lower()} {pattern} {kind} {binding.name}"
