"""A transaction on the keys of one slot, on whichever server has it."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from leftfold.redis.commands import Part, Pipeline
from leftfold.redis.routing import key_of

if TYPE_CHECKING:
    from leftfold.redis.routed import RoutedClient

__all__ = ["WatchingPipeline"]


class WatchingPipeline:
    """redis-py's own pipeline, opened on the server of the first key that is named.

    Nothing is sent a second time: whoever watches must know whether it was he who wrote. An error that says where the
    key is now is remembered, so that trying again goes there.
    """

    def __init__(self, client: RoutedClient) -> None:
        self._client = client
        self._open = ExitStack()
        self._pipe: Any = None

    def watch(self, *names: bytes) -> Any:
        """Sends commands at once from here on, until `multi`."""
        return self._at(names[0]).watch(*names)

    def execute_command(self, *parts: Part) -> Any:
        """Sends a command while watching, else queues it."""
        return self._at(key_of(parts)).execute_command(*parts)

    def multi(self) -> None:
        """Queues what follows."""
        self._pipe.multi()

    def execute(self) -> list[Any]:
        """Sends what was queued and returns the replies; raises WatchError when a watched key changed."""
        replies: list[Any] = self._pipe.execute() if self._pipe is not None else []
        return replies

    def pipeline(self, transaction: bool = True) -> Pipeline:
        """Another one."""
        return self._client.pipeline(transaction)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._client.topology.met(error)
        self._open.close()
        self._pipe = None

    def _at(self, key: bytes) -> Any:
        if self._pipe is None:
            client = self._client.of(self._client.topology.server(key))
            self._pipe = self._open.enter_context(client.pipeline())
        return self._pipe
