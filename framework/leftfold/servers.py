"""Where Kafka and Redis are: the environment says, or `leftfold up` has told in `.leftfold/servers.json`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from leftfold.errors import ConfigurationError
from leftfold.owners import is_foreign

__all__ = ["Announced", "Environment", "announced", "kafka_address", "redis_address"]

_DATA = ".leftfold"
_FILE = "servers.json"


class Environment(BaseSettings):
    """What the environment says of addresses; the adapters' own settings read everything else.

    Args:
        kafka: any setting that names brokers; redis: a URL; data: what the embedded servers keep, `LEFTFOLD_DATA`.
        trust: directories of other users that are trusted, with colons between them; `LEFTFOLD_TRUST`.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True)

    kafka: str = Field(
        default="",
        validation_alias=AliasChoices("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "LEFTFOLD_KAFKA_PROPERTIES"),
    )
    redis: str = Field(default="", validation_alias="LEFTFOLD_REDIS_URL")
    data: Path | None = Field(default=None, validation_alias="LEFTFOLD_DATA")
    trust: str = Field(default="", validation_alias="LEFTFOLD_TRUST")

    def trusts(self, place: Path) -> bool:
        """Whether the user has said to trust a directory, whoever it belongs to."""
        return place.resolve() in (Path(path).resolve() for path in self.trust.split(os.pathsep) if path)


@dataclass(frozen=True)
class Announced:
    """The addresses that running embedded servers announce, '' for a server that does not run, and who says so."""

    kafka: str = ""
    redis: str = field(default="", repr=False)
    file: Path | None = None


def announced(start: Path, environment: Environment) -> Announced:
    """The announcement in `LEFTFOLD_DATA`, else in the nearest `.leftfold` from `start` upwards."""
    places = (start, *start.parents)
    directories = [environment.data] if environment.data else [place / _DATA for place in places]
    for directory in directories:
        file = directory / _FILE
        if file.is_file() and (directory.parent == start or environment.data or _is_safe(file, environment)):
            return _read(file)
    return Announced()


def _is_safe(file: Path, environment: Environment) -> bool:
    """Whether a file above the working directory is one that no other user has put there to lead commands astray."""
    return not is_foreign(file) or environment.trusts(file.parent.parent)


def kafka_address(start: Path) -> str | None:
    """The announced brokers; None when the environment names others, which the Kafka settings then read themselves.

    Raises:
        ConfigurationError: nobody says where Kafka is.
    """
    environment = Environment()
    return None if environment.kafka else _found(announced(start, environment).kafka, "Kafka", _KAFKA_VARIABLE)


def redis_address(start: Path) -> str | None:
    """The announced Redis; None when the environment names another, which the Redis settings then read themselves.

    Raises:
        ConfigurationError: nobody says where Redis is.
    """
    environment = Environment()
    return None if environment.redis else _found(announced(start, environment).redis, "Redis", _REDIS_VARIABLE)


_KAFKA_VARIABLE = "LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS=host:port"
_REDIS_VARIABLE = "LEFTFOLD_REDIS_URL=redis://host:6379/0"


def _found(address: str, what: str, variable: str) -> str:
    if not address:
        raise ConfigurationError(f"no {what} address: start servers with `leftfold up`, or set {variable}")
    return address


def _read(file: Path) -> Announced:
    try:
        told = json.loads(file.read_text("utf-8"))
        return Announced(str(told.get("kafka", "")), str(told.get("redis", "")), file)
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"{file} cannot be read ({error}); write it anew: leftfold up") from error
