"""A cluster of three masters and three replicas, as child processes on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis.crc import key_slot
from redis.exceptions import RedisError

from leftfold.redis import RedisSettings
from tests.free_ports import free_port
from tests.redis.server import RedisServer, lose, offset
from tests.waiting import wait_until

__all__ = ["ClusterSet"]

MASTERS = 3
SLOTS = 16384
OPTIONS = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "15000",
    "cluster-replica-validity-factor": "0",
    "cluster-require-full-coverage": "no",
    "repl-diskless-sync": "yes",
    "repl-diskless-sync-delay": "0",
}


class ClusterSet:
    """Six nodes; tests find out who is what, for that changes."""

    def __init__(self, directory: Path, password: str | None = None) -> None:
        self.password = password
        ports = [free_port() for _ in range(2 * MASTERS)]
        self.nodes = [RedisServer(directory / str(p), password, options=OPTIONS, port=p) for p in ports]

    @property
    def settings(self) -> RedisSettings:
        """How to reach it, by two of its nodes."""
        places = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[-2:])
        login = f":{self.password}@" if self.password else ""
        return RedisSettings(url=f"redis+cluster://{login}{places}", timeout=5.0, connect_timeout=1.0)

    @property
    def patient_settings(self) -> RedisSettings:
        """The same for a test that kills no node: each may stand still for a while."""
        return self.settings.model_copy(update={"timeout": 60.0, "connect_timeout": 60.0})

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        for number, node in enumerate(self.nodes):
            with node.client() as client:
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                client.execute_command("CLUSTER MEET", "127.0.0.1", self.nodes[0].port)
        for number, master in enumerate(masters):
            with master.client() as client:
                slots = range(number * SLOTS // MASTERS, (number + 1) * SLOTS // MASTERS)
                client.execute_command("CLUSTER ADDSLOTS", *slots)
        wait_until(lambda: all(len(self.table(node)) == len(self.nodes) for node in self.nodes), "the nodes to meet")
        for master, replica in zip(masters, replicas, strict=True):
            with replica.client() as client:
                client.execute_command("CLUSTER REPLICATE", self.id_of(master))
        self.wait_settled()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def table(self, node: RedisServer) -> list[list[str]]:
        """What a node knows of all: lines of id, address, flags, master, … slots."""
        return [line.split(" ") for line in _asked(node, "NODES").decode().splitlines()]

    def id_of(self, node: RedisServer) -> str:
        return next(line[0] for line in self.table(node) if "myself" in line[2])

    def owner(self, key: bytes | int) -> RedisServer:
        """The node that has the slot of a key (or a slot by number), by what the nodes that run agree on."""
        (found,) = self.owners([key])
        return found

    def owners(self, keys: Iterable[bytes | int]) -> list[RedisServer]:
        """The owner of each, by what every node is asked once."""
        tables, found = [_asked(node, "SLOTS") for node in self.nodes if node.runs], list[RedisServer]()
        for slot in (key if isinstance(key, int) else key_slot(key) for key in keys):
            ports = {_owner_in(table, slot) for table in tables}
            assert len(ports) == 1, f"the nodes do not agree on slot {slot}: {ports}"
            found.append(next(node for node in self.nodes if node.port in ports))
        return found

    def replica_of(self, master: RedisServer) -> RedisServer:
        id_ = self.id_of(master)
        ports = [_port(line) for line in self.table(master) if line[3] == id_]
        return next(node for node in self.nodes if node.port in ports)

    def wait_settled(self) -> None:
        """Waits until all nodes agree on who has what, and each replica is up to date."""
        wait_until(self._settled, "the cluster to settle")

    def wait_promoted(self, node: RedisServer) -> None:
        """Waits until every node that runs sees this one as a master and the cluster as whole."""

        def promoted() -> bool:
            return all(
                any(_port(line) == node.port and "master" in line[2] and len(line) > 8 for line in self.table(other))
                and _is_whole(other)
                for other in self.nodes
                if other.runs
            )

        try:
            self._say_dead_after(1000)
            wait_until(promoted, f"port {node.port} to be promoted")
        finally:
            self._say_dead_after(15_000)

    def lose(self, master: RedisServer, happens: Callable[[], object]) -> None:
        """Lets something happen that a master never tells its replica, and kills the master."""
        replica = self.replica_of(master)
        lose(master, replica, happens)
        self.wait_promoted(replica)

    def wait_replicated(self, master: RedisServer) -> None:
        replica = self.replica_of(master)
        wait_until(lambda: offset(master) == offset(replica), "the replica to have everything")

    def empty(self) -> None:
        for node in self.nodes:
            if self._is_master(node):
                with node.client() as client:
                    client.flushall()

    @contextmanager
    def without(self, slot: int) -> Iterator[None]:
        """A slot that no node owns, until the block ends."""
        owner = self.owner(slot)
        try:
            wait_until(lambda: self._taken_away(slot), f"slot {slot} to have no owner")
            yield
        finally:
            if not self._owner_by(owner, slot):
                with owner.client() as client:
                    client.execute_command("CLUSTER ADDSLOTS", slot)
            self.wait_settled()

    def bring_back(self) -> None:
        """Starts what was killed and waits until it follows."""
        for node in self.nodes:
            if not node.runs:
                node.start()
        self.wait_settled()

    @contextmanager
    def moving(self, slot: int) -> Iterator[Move]:
        """A slot on its way to another master; it is there at the end."""
        source = self.owner(slot)
        target = next(node for node in self.nodes if node is not source and self._is_master(node))
        move = Move(self, slot, source, target)
        move.begin()
        try:
            yield move
        finally:
            move.end()

    def _say_dead_after(self, milliseconds: int) -> None:
        """How long nodes wait for each other: no node is given up that only stands still, unless one was killed."""
        for node in self.nodes:
            if node.runs:
                with node.client() as client:
                    client.config_set("cluster-node-timeout", milliseconds)

    def _is_master(self, node: RedisServer) -> bool:
        return node.runs and any("myself" in line[2] and "master" in line[2] for line in self.table(node))

    def _taken_away(self, slot: int) -> bool:
        """Takes a slot away on each node that knows its owner; False = ask again, for late messages give it back."""
        knowing = [node for node in self.nodes if self._owner_by(node, slot)]
        for node in knowing:
            with node.client() as client:
                client.execute_command("CLUSTER DELSLOTS", slot)
        return not knowing

    def _owner_by(self, node: RedisServer, slot: int) -> int:
        return _owner_in(_asked(node, "SLOTS"), slot)

    def _settled(self) -> bool:
        try:
            if not all(_is_whole(node) for node in self.nodes):
                return False
            for node in self.nodes:
                with node.client() as client:
                    reported = client.info("replication")
                if reported["role"] == "slave" and reported["master_link_status"] != "up":
                    return False
                if reported["role"] == "master" and reported["connected_slaves"] != 1:
                    return False
            return len({_view(self.table(node)) for node in self.nodes}) == 1
        except RedisError:
            return False


class Move:
    """One slot's way from a master to another, step by step."""

    def __init__(self, cluster: ClusterSet, slot: int, source: RedisServer, target: RedisServer) -> None:
        self._cluster, self.slot, self.source, self.target = cluster, slot, source, target

    def begin(self) -> None:
        """From here on the source sends away what it does not have."""
        self._set(self.target, "IMPORTING", self._cluster.id_of(self.source))
        self._set(self.source, "MIGRATING", self._cluster.id_of(self.target))

    def carry(self, *keys: bytes) -> None:
        """Moves some keys; one that was removed meanwhile needs none."""
        with self.source.client() as client:
            moved = client.execute_command("MIGRATE", "127.0.0.1", self.target.port, "", 0, 60_000, "KEYS", *keys)
            assert moved in (b"OK", b"NOKEY"), moved

    def left(self, count: int = 1000) -> list[bytes]:
        """Keys of the slot that are still at the source."""
        with self.source.client() as client:
            found: list[bytes] = client.execute_command("CLUSTER GETKEYSINSLOT", self.slot, count)
            return found

    def end(self) -> None:
        """Moves what is left and tells every node."""
        while keys := self.left():
            self.carry(*keys)
        id_ = self._cluster.id_of(self.target)
        others = [node for node in self._cluster.nodes if node not in (self.source, self.target)]
        for node in (self.target, self.source, *others):
            if node.runs and self._cluster._is_master(node):
                self._set(node, "NODE", id_)
        wait_until(self._owned, f"everyone to know of the move of slot {self.slot}")

    def _owned(self) -> bool:
        nodes = [node for node in self._cluster.nodes if node.runs]
        return all(self._cluster._owner_by(node, self.slot) == self.target.port for node in nodes)

    def _set(self, node: RedisServer, state: str, id_: str) -> None:
        with node.client() as client:
            client.execute_command("CLUSTER SETSLOT", self.slot, state, id_)


def _is_whole(node: RedisServer) -> bool:
    with node.client() as client:
        reported: Any = client.execute_command("CLUSTER INFO")
        return bool(reported["cluster_state"] == "ok" and reported["cluster_slots_ok"] == str(SLOTS))


def _asked(node: RedisServer, about: str) -> Any:
    """What a node answers, as it is: redis-py makes something else of it."""
    with node.client() as client:
        connection: Any = client.connection_pool.get_connection()
        try:
            connection.send_command("CLUSTER", about)
            return connection.read_response()
        finally:
            client.connection_pool.release(connection)


def _owner_in(table: Any, slot: int) -> int:
    """The port of the master that has a slot by a node's table, 0 = none."""
    return next((int(places[0][1]) for first, last, *places in table if first <= slot <= last), 0)


def _port(line: list[str]) -> int:
    return int(line[1].partition("@")[0].rpartition(":")[2])


def _view(lines: list[list[str]]) -> str:
    """What a node thinks of all, the same text for all who think alike."""
    return "\n".join(sorted(f"{_port(line)} {line[3]} {' '.join(line[8:])}" for line in lines))
