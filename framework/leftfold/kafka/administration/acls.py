"""Reads and grants the ACLs of users in a Kafka cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # confluent-kafka exports these implicitly
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from leftfold.errors import ConfigurationError, LeftfoldError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.errors import kafka_error
from leftfold.model.rights import Right

__all__ = ["Acls"]

_KINDS = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional-id": ResourceType.TRANSACTIONAL_ID}


class Acls(ClusterAdmin):
    """Reads and changes the ACLs of a Kafka cluster.

    Raises:
        ConfigurationError: the login may not read or alter them, or the cluster has no authorizer.
        InfrastructureError: no broker answers.
    """

    def missing(self, wanted: Mapping[str, Iterable[Right]]) -> dict[str, list[Right]]:
        """The wanted rights that users lack; only ACLs with exactly the same pattern count."""
        return {
            user: [right for right in rights if not set(_bindings(user, right)) <= self._granted(user)]
            for user, rights in wanted.items()
        }

    def besides(self, wanted: Mapping[str, Iterable[Right]]) -> dict[str, list[str]]:
        """The ACLs that users have and do not need, as text."""
        return {
            user: sorted(map(_words, self._granted(user).difference(*(_bindings(user, right) for right in rights))))
            for user, rights in wanted.items()
        }

    def grant(self, rights: Mapping[str, Iterable[Right]]) -> None:
        """Grants rights to users, from any host."""
        bindings = [new for user, some in rights.items() for right in some for new in _bindings(user, right)]
        if bindings:
            create = self._admin.create_acls
            self._answered("granting rights", lambda: create(bindings, request_timeout=self._timeout))

    def _granted(self, user: str) -> set[Any]:
        anything: Any = None
        every = AclBindingFilter(
            ResourceType.ANY, anything, ResourcePatternType.ANY, f"User:{user}", anything, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        doing = f"reading the rights of {user}"
        asked = self._asked(doing, lambda: self._admin.describe_acls(every, request_timeout=self._timeout))
        return set(self._answer(doing, asked))

    def _translated(
        self, error: KafkaException | KafkaError, doing: str, seconds: float | None = None
    ) -> LeftfoldError:
        if kafka_error(error).code() == KafkaError.SECURITY_DISABLED:
            return ConfigurationError(
                f"{doing}: the brokers at {self._settings.bootstrap_servers} have no authorizer, so every user has all "
                f"rights; set authorizer.class.name, or try it here: leftfold up --secure"
            )
        return super()._translated(error, doing, seconds)


def _bindings(user: str, right: Right) -> list[Any]:
    pattern = ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL
    return [
        AclBinding(
            _KINDS[right.kind], right.name, pattern, f"User:{user}", "*",
            AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()], AclPermissionType.ALLOW,
        )
        for operation in right.operations
    ]  # fmt: skip


def _words(binding: Any) -> str:
    kind, pattern = binding.restype.name.lower(), binding.resource_pattern_type.name.lower()
    return f"{binding.permission_type.name.lower()} {binding.operation.name.lower()} {pattern} {kind} {binding.name}"
