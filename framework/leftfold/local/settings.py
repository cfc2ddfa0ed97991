"""What a user may say about the embedded servers; the only reader of the environment in this package."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["Listener", "LocalSettings"]


class Listener(BaseModel):
    """A further listener of the broker, told to clients under another port: room for a proxy in front.

    Args:
        name: upper case, unlike PLAINTEXT and CONTROLLER.
        port: where the broker listens.
        advertised_port: where clients are told to connect.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    port: int
    advertised_port: int


class LocalSettings(BaseSettings):
    """Where the embedded servers live, what they are made of and how large they may grow.

    Args:
        data: everything the servers keep; `LEFTFOLD_DATA`.
        jars: a directory that holds the locked jars, for machines without a network; `LEFTFOLD_JARS`.
        ivy_settings: an Ivy settings file that names a mirror; `LEFTFOLD_IVY_SETTINGS`.
        cache_home: where caches of this user go; `XDG_CACHE_HOME`.
        java_home: a Java to try first; `JAVA_HOME`.
        path: where `java` and `redis-server` are looked for; `PATH`.
        secure: the servers want a login over TLS, with a user for each part of a service; kept with the data.
        redis_password: instead of the random one that is kept in `redis/password` of the data directory.
        kafka_port, redis_port: instead of the ports kept in the data directory.
        kafka_memory: the broker's heap, as in `-Xmx`.
        kafka_jvm: further flags; the defaults halve the broker's CPU time and start it 0.5 s sooner on two cores.
        kafka_properties: lines added to `server.properties`, winning over ours.
        start_timeout, stop_timeout: seconds.
    """

    model_config = SettingsConfigDict(
        env_prefix="LEFTFOLD_LOCAL_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    data: Path = Field(default=Path(".leftfold"), validation_alias="LEFTFOLD_DATA")
    jars: Path | None = Field(default=None, validation_alias="LEFTFOLD_JARS")
    ivy_settings: Path | None = Field(default=None, validation_alias="LEFTFOLD_IVY_SETTINGS")
    cache_home: Path = Field(default_factory=lambda: Path.home() / ".cache", validation_alias="XDG_CACHE_HOME")
    java_home: Path | None = Field(default=None, validation_alias="JAVA_HOME")
    path: str = Field(default="", validation_alias="PATH")
    kafka_port: int | None = None
    kafka_memory: str = "768m"
    kafka_jvm: tuple[str, ...] = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    kafka_properties: dict[str, str] = Field(default_factory=dict)
    kafka_listeners: tuple[Listener, ...] = ()
    redis_port: int | None = None
    secure: bool = False
    redis_password: SecretStr | None = None
    start_timeout: float = 180.0
    stop_timeout: float = 20.0

    @property
    def cache(self) -> Path:
        """Leftfold's own directory among the user's caches."""
        return self.cache_home.expanduser() / "leftfold"
