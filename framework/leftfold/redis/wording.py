"""A question in Redis' words: commands to send, and what their replies mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from typing_extensions import TypeVar

from leftfold.flush import Generation
from leftfold.redis.commands import Part
from leftfold.redis.keys import registry_key

__all__ = ["Asker", "Command", "Wording", "ask_live", "hash_of", "live_in"]

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
Command: TypeAlias = tuple[Part, ...]


class Wording(Protocol[A_co]):
    """Commands whose second word is the one key that each touches, sent together in any client, threaded or not."""

    @property
    def commands(self) -> Sequence[Command]:
        """What to send, in this order."""

    def answer(self, replies: Sequence[Any], /) -> A_co:
        """What one reply per command says; errors were raised before."""


class Asker(Protocol):
    """Asks questions for the coroutines of one event loop."""

    async def ask(self, wording: Wording[A]) -> A:
        """The answer to a question; raises InfrastructureError when a server cannot be reached or refuses."""

    async def aclose(self) -> None:
        """Closes every connection."""


def hash_of(reply: Any) -> Mapping[bytes, bytes]:
    """A hash from a reply: redis-py makes a dict, the protocol has names and values in turn."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def ask_live(generation: Generation) -> Command:
    """The command that asks which generation is live for the hash of one."""
    return ("HGET", registry_key(generation.view), f"live:{generation.pointer}")


def live_in(reply: bytes | None) -> str:
    """The id in the reply to it, '' for none."""
    return (reply or b"").decode()
