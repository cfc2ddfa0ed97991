"""A slice of the real year, bought now: some pay by card, some by check, and some shelves are short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zlib import crc32

from events.baskets import BasketPaid, BasketReopened, basket_of
from events.inventory import stock_id
from events.payments import CaptureRequested, Method
from leftfold import App, Command, Event, OutcomeUnknown, Position, Receipt
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.message_codec import MessageCodec, header
from services.baskets.commands import AddItem, BasketCommand, CheckOut, OpenBasket
from services.baskets.history import history
from services.checkout.process import PATIENCE
from services.inventory.commands import Receive
from services.payments.commands import Clear

__all__ = ["Log", "Shopping", "send"]

DEAR = 60


@dataclass(frozen=True)
class Shopping:
    """Stock that comes first, and the commands of the baskets, each with its id."""

    deliveries: Sequence[Receive]
    commands: Sequence[tuple[str, Command]]
    checkouts: int

    @classmethod
    def of(cls, baskets: int, patience: timedelta) -> Shopping:
        """The first baskets of the year, bought now; who pays by check has only so much patience left."""
        now = datetime.now(UTC)
        found: dict[str, list[BasketCommand]] = {}
        for _, command in history(weeks=[1]):
            if len(found) == baskets and command.basket_id not in found:
                break
            found.setdefault(command.basket_id, []).append(command)
        commands = []
        for basket, given in found.items():
            paying = [_paying(command, given) for command in given]
            by_check = any(isinstance(one, CheckOut) and one.method is Method.CHECK for one in paying)
            at = now - PATIENCE + patience if by_check else now
            commands += [(f"{basket}-{n}", one.model_copy(update={"at": at})) for n, one in enumerate(paying)]
        return cls(_deliveries(found.values(), now), commands, baskets)


def _deliveries(baskets: Iterable[Sequence[BasketCommand]], at: datetime) -> list[Receive]:
    """What all baskets want, but for one unit too few of every twentieth product."""
    wanted: Counter[str] = Counter()
    for commands in baskets:
        store = next(command.store_id for command in commands if isinstance(command, OpenBasket))
        for command in commands:
            if isinstance(command, AddItem):
                wanted[stock_id(store, command.product_id)] += command.quantity
    units = {key: count - (crc32(key.encode()) % 20 == 0) for key, count in wanted.items()}
    return [Receive(stock_id=key, at=at, quantity=count) for key, count in units.items() if count > 0]


def _paying(command: BasketCommand, basket: Sequence[BasketCommand]) -> BasketCommand:
    """The command; at the checkout every third basket is paid by check, and every ninth wants to use points."""
    if not isinstance(command, CheckOut):
        return command
    total = sum(one.sales_value for one in basket if isinstance(one, AddItem))
    chance = crc32(command.basket_id.encode())
    method = Method.CHECK if chance % 3 == 0 or total > DEAR else Method.CARD
    return CheckOut(
        basket_id=command.basket_id, at=command.at, method=method, points=5 if chance % 9 == 1 and total > 1 else 0
    )


def send(client: KafkaClient, commands: Iterable[tuple[str, Command]]) -> Counter[str]:
    """Sends commands until all are answered, whichever worker dies meanwhile; how they were answered."""
    left, counts = list(commands), Counter[str]()
    while left:
        answers = client.send_many([command for _, command in left], ids=[id_ for id_, _ in left], timeout=30.0)
        again = []
        for item, answer in zip(left, answers, strict=True):
            if isinstance(answer, OutcomeUnknown):
                again.append(item)
            else:
                counts["accepted" if isinstance(answer, Receipt) else type(answer).__name__] += 1
        left = again
    return counts


class Log:
    """Everything that the services have written, read further with each look."""

    def __init__(self, app: App, settings: KafkaSettings) -> None:
        self._log = KafkaLogReader(settings)
        self._codecs = {names.events(d.name): MessageCodec[Event](d.events) for d in app.deciders}
        self.events: dict[str, list[Event]] = {decider.name: [] for decider in app.deciders}
        self._names = {names.events(decider.name): decider.name for decider in app.deciders}
        partitions = range(app.partitions)
        self._log.seek(Position({topic: dict.fromkeys(partitions, 0) for topic in self._codecs}))

    def look(self) -> Mapping[str, list[Event]]:
        """The events of each category, a stream in its order."""
        ends = self._log.ends(list(self._codecs))
        while not self._log.position().covers(ends):
            for record in self._log.poll(1000, 0.1):
                event = self._codecs[record.topic].wanted(header(record.headers, "ce_type"), record.value)
                if event is not None:
                    self.events[self._names[record.topic]].append(event)
        return self.events

    @property
    def position(self) -> Position:
        """How far it has been read."""
        return self._log.position()

    @property
    def ended(self) -> set[str]:
        """Baskets whose checkout has an end."""
        return {event.basket_id for event in self.events["baskets"] if isinstance(event, BasketPaid | BasketReopened)}

    def cleared(self) -> list[tuple[str, Command]]:
        """What the bank says of every other check that it was asked for."""
        asked = [event for event in self.events["payments"] if isinstance(event, CaptureRequested)]
        return [
            (f"clear-{one.payment_id}", Clear(payment_id=one.payment_id, at=one.at))
            for one in asked
            if crc32(basket_of(one.payment_id).encode()) % 2
        ]

    def close(self) -> None:
        """Ends the reader."""
        self._log.close()
