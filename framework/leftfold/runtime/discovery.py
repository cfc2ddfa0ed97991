"""Finds the addresses of Kafka and Redis: the environment, else `.leftfold/servers.json`, written by `leftfold up`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from leftfold.errors import ConfigurationError
from leftfold.safety import is_foreign

__all__ = ["Announced", "Environment", "announced", "kafka_fields", "redis_fields"]

_DATA = ".leftfold"
_FILE = "servers.json"


class Environment(BaseSettings):
    """The environment variables with server addresses; the adapters' settings classes read all others.

    Args:
        kafka: any setting that names brokers. redis: a URL. data: the embedded servers' data directory,
            `LEFTFOLD_DATA`.
        trust: trusted directories of other users, separated by colons; `LEFTFOLD_TRUST`.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True)

    kafka: str = Field(
        default="", validation_alias=AliasChoices("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "LEFTFOLD_KAFKA_PROPERTIES")
    )
    redis: str = Field(default="", validation_alias="LEFTFOLD_REDIS_URL")
    data: Path | None = Field(default=None, validation_alias="LEFTFOLD_DATA")
    trust: str = Field(default="", validation_alias="LEFTFOLD_TRUST")

    def trusts(self, place: Path) -> bool:
        """Whether `LEFTFOLD_TRUST` lists a directory, whichever user owns it."""
        return place.resolve() in (Path(path).resolve() for path in self.trust.split(os.pathsep) if path)


@dataclass(frozen=True)
class Announced:
    """The addresses that running embedded servers announce, '' for a server that does not run.

    `file` is the announcement's file. If the servers require a login, `kafka_login` and `redis_login` are further
    fields of the settings of Kafka and Redis. `advice` is what to do when a server does not answer.
    """

    kafka: str = ""
    redis: str = field(default="", repr=False)
    file: Path | None = None
    kafka_login: Mapping[str, str] = field(default_factory=dict, repr=False)
    redis_login: Mapping[str, str] = field(default_factory=dict, repr=False)
    advice: str = "start it: leftfold up"


def announced(start: Path, environment: Environment) -> Announced:
    """The announcement in `LEFTFOLD_DATA`, else in the nearest `.leftfold` from `start` upwards."""
    places = (start, *start.parents)
    directories = [environment.data] if environment.data else [place / _DATA for place in places]
    for directory in directories:
        file = directory / _FILE
        if _is_there(file) and (environment.data or _is_safe(file, environment)):
            return _read(file)
    return Announced()


def _is_there(file: Path) -> bool:
    try:
        return file.is_file()
    except PermissionError:  # the servers of another user, who keeps them private
        return False


def _is_safe(file: Path, environment: Environment) -> bool:
    """Whether a file may be used; another user could have written it to redirect commands to other servers."""
    return not is_foreign(file) or environment.trusts(file.parent.parent)


def kafka_fields(start: Path) -> Mapping[str, str] | None:
    """The announced brokers as fields of `KafkaSettings`; None when the environment names brokers.

    Raises:
        ConfigurationError: neither the environment nor an announcement has an address of Kafka.
    """
    if Environment().kafka:
        return None
    found = announced(start, Environment())
    address = _required(found.kafka, "Kafka", "LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS=host:port")
    return {"bootstrap_servers": address, "advice": found.advice, **found.kafka_login}


def redis_fields(start: Path) -> Mapping[str, str] | None:
    """The announced Redis as fields of `RedisSettings`; None when the environment names a server.

    Raises:
        ConfigurationError: neither the environment nor an announcement has an address of Redis.
    """
    if Environment().redis:
        return None
    found = announced(start, Environment())
    address = _required(found.redis, "Redis", "LEFTFOLD_REDIS_URL=redis://host:6379/0")
    return {"url": address, "advice": found.advice, **found.redis_login}


def _required(address: str, what: str, variable: str) -> str:
    if not address:
        raise ConfigurationError(f"no {what} address: start servers with `leftfold up`, or set {variable}")
    return address


def _read(file: Path) -> Announced:
    try:
        content = json.loads(file.read_text("utf-8"))
        rest = {name: content[name] for name in ("kafka_login", "redis_login", "advice") if name in content}
        return Announced(str(content.get("kafka", "")), str(content.get("redis", "")), file, **rest)
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"{file} cannot be read ({error}); write it again: leftfold up") from error
