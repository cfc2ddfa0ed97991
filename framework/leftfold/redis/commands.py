"""What is used of redis-py, with types."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

__all__ = ["AsyncClient", "AsyncPipeline", "Client", "Part", "Pipeline"]

Part: TypeAlias = bytes | str | int


class _Commands(Protocol):
    def execute_command(self, *parts: Part) -> Any:
        """Sends a command, or queues it in a pipeline that is not watching."""

    def pipeline(self, transaction: bool = True) -> Pipeline:
        """Commands sent together."""


class Pipeline(_Commands, Protocol):
    """Commands sent together: watched, then queued behind `multi`."""

    def watch(self, *names: bytes) -> Any:
        """Sends commands at once from here on, until `multi`; `execute` fails if one of these keys changes."""

    def multi(self) -> None:
        """Queues what follows."""

    def execute(self) -> list[Any]:
        """Sends what was queued and returns the replies; raises WatchError when a watched key changed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Client(_Commands, Protocol):
    """A pooled client."""

    def close(self) -> None:
        """Closes the pool."""


class AsyncPipeline(Protocol):
    """Commands sent together."""

    def execute_command(self, *parts: Part) -> Any:
        """Queues a command."""

    async def execute(self) -> list[Any]:
        """Sends what was queued and returns the replies."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class AsyncClient(Protocol):
    """A pooled client of one event loop."""

    async def execute_command(self, *parts: Part) -> Any:
        """Sends a command."""

    def pipeline(self, transaction: bool = True) -> AsyncPipeline:
        """Commands sent together."""

    async def aclose(self) -> None:
        """Closes the pool."""
