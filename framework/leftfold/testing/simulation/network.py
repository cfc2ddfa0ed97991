"""A simulated network: carries bytes between processes and servers, with the faults of a plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from leftfold.testing.simulation.kafka.brokers import LATENCY, Fate

if TYPE_CHECKING:
    from leftfold.testing.simulation.environment import SimulatedWorld
    from leftfold.testing.simulation.scheduler import Scheduler, SimulatedProcess
    from leftfold.testing.simulation.stand_ins.sockets import Socket

__all__ = ["Address", "Host", "Link", "Network", "ServerConnection", "Service", "name_of"]

Address: TypeAlias = tuple[str, int] | str
"""A name and a port, or the path of a Unix socket."""
_AGAIN_SECONDS = 0.2
"""The mean time until lost data is sent again, as TCP does."""
_Act: TypeAlias = Callable[[], None]


class ServerConnection(Protocol):
    """The server's side of one connection."""

    is_closed: bool

    def receive(self, data: bytes, /) -> bytes:
        """Takes bytes and returns the reply."""

    def close(self) -> None:
        """Handles the end of the connection by the client or the network."""


class Service(Protocol):
    """A server that takes the bytes of connections and returns bytes."""

    def open(self, deliver: Callable[[bytes | None], None], /) -> ServerConnection:
        """Opens a connection; `deliver` sends data that is no reply, and None to close it."""


class Host:
    """A host on which a service listens.

    Attributes:
        is_up: a host that is down refuses connections. is_stopped: one that is stopped answers nothing meanwhile, not
            even a connection.
    """

    def __init__(self, network: Network, address: Address, service: Service) -> None:
        self._network, self.address, self.service = network, address, service
        self.is_up, self.is_stopped = True, False
        self.links: dict[Link, None] = {}

    @property
    def name(self) -> str:
        """The name in cuts and messages."""
        return self.address if isinstance(self.address, str) else f"{self.address[0]}:{self.address[1]}"

    def kill(self) -> None:
        """Ends the server at once: every connection is lost, and data in flight is not handled."""
        self.is_up = self.is_stopped = False
        for link in list(self.links):
            link.reset()

    def start(self) -> None:
        """Starts the server again; the service decides which data it still has."""
        self.is_up = True


class Network:
    """All hosts, and the data in flight between them.

    It registers itself in the world as `parts["network"]`, where the sockets find it.

    Attributes:
        fate: called for each connection and each piece of data that is sent, with what it is ("redis connect",
            "redis MULTI") and the process: None = it arrives and is answered. `lost` loses the connection before the
            data arrives, `unanswered` after it is handled, `late` takes so many seconds more. A connection with a fate
            of loss is refused.
        torn: how many bytes of a piece of that size arrive although it is lost; 0 unless a plan says otherwise.
        cut: triples (process name, host name, direction "to" or "from") that nothing passes; the data is sent again
            until it gets through, so that it may arrive long after its sender has given up.
        latency: mean seconds for one way.
    """

    def __init__(self, world: SimulatedWorld, latency: float = LATENCY) -> None:
        self.scheduler: Scheduler = world.scheduler
        self.hosts: dict[Address, Host] = {}
        self.fate: Callable[[str, SimulatedProcess], Fate | None] = lambda what, process: None
        self.torn: Callable[[int], int] = lambda size: 0
        self.cut: set[tuple[str, str, str]] = set()
        self.latency = latency
        world.parts["network"] = self

    def listen(self, address: Address, service: Service) -> Host:
        """Registers a service at an address."""
        host = self.hosts[address] = Host(self, address, service)
        return host

    def hop(self) -> float:
        """The seconds that one way takes this time."""
        return self.latency * (0.25 + 1.5 * self.scheduler.random.random())

    def again(self) -> float:
        """The seconds until data is sent again."""
        return _AGAIN_SECONDS * (0.5 + self.scheduler.random.random())


class _Way:
    """One direction of a connection: data arrives in the order in which it was sent."""

    def __init__(self, network: Network, is_passable: Callable[[], bool]) -> None:
        self._network, self._is_passable = network, is_passable
        self._under_way: deque[tuple[float, _Act]] = deque()
        self._is_pumping = False
        self._last = 0.0

    def send(self, act: _Act, seconds: float = 0.0) -> None:
        """Runs an action at the other end, after everything sent before.

        Args:
            seconds: additional delay.
        """
        scheduler = self._network.scheduler
        self._last = max(scheduler.now + self._network.hop() + seconds, self._last + 1e-9)
        self._under_way.append((self._last, act))
        if not self._is_pumping:
            self._is_pumping = True
            scheduler.call_later(self._last - scheduler.now, self._pump)

    def _pump(self) -> None:
        scheduler = self._network.scheduler
        while self._under_way:
            at = self._under_way[0][0]
            if at > scheduler.now:
                scheduler.call_later(at - scheduler.now, self._pump)
                return
            if not self._is_passable():
                scheduler.call_later(self._network.again(), self._pump)
                return
            self._under_way.popleft()[1]()
        self._is_pumping = False


class Link:
    """One connection of a process to a host.

    Args:
        socket: the client's side, which gets data, the end, or an error.
    """

    def __init__(self, network: Network, process: SimulatedProcess, host: Host, socket: Socket) -> None:
        self._network, self.process, self.host, self._socket = network, process, host, socket
        self._to = _Way(network, lambda: self._passes("to") and not host.is_stopped)
        self._from = _Way(network, lambda: self._passes("from"))
        self._connection: ServerConnection | None = None
        self._is_lost = False

    def connect(self, done: Callable[[bool], None]) -> None:
        """Requests a connection; `done` gets whether it is open, or is never called where nothing passes."""
        fate = self._network.fate("redis connect", self.process)
        seconds = fate.seconds if fate is not None else 0.0

        def arrive() -> None:
            is_open = self.host.is_up and (fate is None or fate.kind == "late")
            if is_open:
                self._connection = self.host.service.open(self._deliver)
                self.host.links[self] = None
            self._from.send(lambda: done(is_open))

        self._to.send(arrive, seconds)

    def send(self, data: bytes, what: str) -> None:
        """Sends bytes to the server, with the name of their first command; the outcome shows later."""
        fate = self._network.fate(what, self.process)
        kind = fate.kind if fate is not None else ""
        if kind == "lost":
            data = data[: self._network.torn(len(data))]

        def arrive() -> None:
            connection = self._connection
            if connection is None or connection.is_closed:
                self.reset()
                return
            answer = connection.receive(data) if data else b""
            if kind in ("lost", "unanswered"):
                self.reset()
                return
            self._answer(answer)
            if connection.is_closed:
                self._from.send(self._socket.arrived_end)

        self._to.send(arrive, fate.seconds if fate is not None else 0.0)

    def close(self) -> None:
        """Closes the connection at the client; the server sees it after everything sent before."""
        self._to.send(self._end)

    def reset(self) -> None:
        """Loses the connection at the server's side: the client sees it later, and data behind it vanishes."""
        if not self._is_lost:
            self._is_lost = True
            self._end()
            self._from.send(self._socket.arrived_reset)

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        self.host.links.pop(self, None)
        if connection is not None and not connection.is_closed:
            connection.close()

    def _deliver(self, data: bytes | None) -> None:
        if data is None:
            self.reset()
        else:
            self._answer(data)

    def _answer(self, data: bytes) -> None:
        if data and not self._is_lost:
            self._from.send(lambda: self._socket.arrived(data))

    def _passes(self, direction: str) -> bool:
        cut = self._network.cut
        return not cut or (self.process.name, self.host.name, direction) not in cut


def name_of(data: bytes) -> str:
    """The name of the first command in these bytes, for traces and plans."""
    parts = data[:64].split(b"\r\n", 3)
    name = parts[2] if len(parts) == 4 and data[:1] == b"*" else b"data"
    return f"redis {name.decode(errors='replace').upper()}"
