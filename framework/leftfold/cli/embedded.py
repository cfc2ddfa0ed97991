"""Which embedded servers a project needs, and where they keep their data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leftfold.cli.console import note
from leftfold.cli.project import find_project
from leftfold.connection import ring

if TYPE_CHECKING:
    from leftfold.local import LocalSettings

__all__ = ["Needed", "local_settings", "needed"]


@dataclass(frozen=True)
class Needed:
    """The servers to start here: those whose address nobody has configured."""

    want: frozenset[str]

    def tell(self) -> None:
        """Says which are left out and why."""
        for name, variable in (("kafka", "LEFTFOLD_KAFKA_*"), ("redis", "LEFTFOLD_REDIS_URL")):
            if name not in self.want:
                note(f"{name} is configured by {variable}; none is started here")


def needed(kafka: str | None = None, redis: str | None = None) -> Needed:
    """What is configured neither by these arguments nor by the environment."""
    environment = ring("leftfold.servers").Environment()
    configured = {"kafka": kafka or environment.kafka, "redis": redis or environment.redis}
    return Needed(frozenset(name for name, address in configured.items() if not address))


def local_settings() -> LocalSettings:
    """The user's settings, with the data in the project's own directory unless `LEFTFOLD_DATA` says otherwise."""
    settings: LocalSettings = ring("leftfold.local").LocalSettings()
    if "data" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"data": find_project().data})
