"""The events that a reaction has parked, as `{reaction}.dead` has them, and how far they have been tried again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from leftfold import names
from leftfold.codec import header
from leftfold.engine.pending import DEAD_HEADERS
from leftfold.engine.received import origin_of
from leftfold.errors import ContractError
from leftfold.kafka.cluster import Cluster
from leftfold.kafka.one_record import record_at
from leftfold.kafka.places import Place, RecordedPlaces
from leftfold.kafka.reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports import RawRecord
from leftfold.position import Position

__all__ = ["ParkedEvents"]


class ParkedEvents:
    """What waits in `{reaction}.dead`: everything behind the place up to which it was tried again."""

    def __init__(self, reaction: str, settings: KafkaSettings) -> None:
        self._topic, self._settings = names.dead(reaction), settings
        self._places = RecordedPlaces(names.begun(reaction), settings)

    def count(self) -> int:
        """How many wait. Nothing in this topic is in a transaction, so offsets count."""
        start, end = self._range()
        ends = end.offsets.get(self._topic, {})
        return sum(max(0, offset - start.next_offset(self._topic, p)) for p, offset in ends.items())

    def read(self) -> Iterator[RawRecord]:
        """Those that wait now, partition by partition in their order."""
        start, end = self._range()
        log = KafkaLogReader(self._settings)
        try:
            log.seek(start)
            while not log.position().covers(end):
                for record in log.poll(200, 1.0):
                    if record.offset < end.next_offset(record.topic, record.partition):
                        yield record
        finally:
            log.close()

    def passed(self, offsets: Mapping[Place, int]) -> None:
        """These have been tried again, up to some offsets."""
        self._places.write(offsets)

    def original(self, parked: RawRecord) -> RawRecord:
        """The event as it stands in the log; one that was too heavy to be copied is read there.

        Raises:
            ContractError: nobody of us has parked this.
        """
        source = header(parked.headers, "dead_source")
        try:
            place, offset, _ = origin_of(source + b"/0")
        except (ValueError, UnicodeDecodeError) as error:
            where = f"{parked.topic}[{parked.partition}]@{parked.offset}"
            raise ContractError(f"{where}: dead_source is {source!r}, which is no topic/partition/offset") from error
        topic, _, partition = place.rpartition("/")
        if header(parked.headers, "dead_reference"):
            return record_at(self._settings, topic, int(partition), offset)
        headers = tuple(one for one in parked.headers if one[0] not in DEAD_HEADERS)
        return RawRecord(topic, int(partition), offset, parked.key, parked.value, headers, parked.time)

    def _range(self) -> tuple[Position, Position]:
        with Cluster(self._settings) as cluster:
            end, held = cluster.ends([self._topic]), cluster.starts([self._topic])
        tried = {p: offset for (topic, p), offset in self._places.read().items() if topic == self._topic}
        return held | Position({self._topic: tried}), end
