"""Orders of three kinds, which go on whatever happens, and what must have become of them in the end."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from itertools import count

from tests.domains.trade import PATIENCE, Confirmed, Dropped, Pay, Place, Released, Reserved
from tests.process.effects import happened
from tests.process.trading import Trading

__all__ = ["Orders"]


class Orders:
    """Orders that are bought, that nobody pays in time, and of which there are too few."""

    def __init__(self, trading: Trading, name: str) -> None:
        self._trading, self._name, self._numbers = trading, name, count()
        self.bought: list[str] = []
        self.late: list[str] = []
        self.scarce: Counter[str] = Counter()

    def more(self) -> None:
        """Three orders, one of each kind."""
        number, now = next(self._numbers), datetime.now(UTC)
        bought, late, wants = (f"{self._name}-{kind}-{number}" for kind in ("bought", "late", "wants"))
        scarce = f"{self._name}-scarce-{number // 3}"
        self._place(bought, bought, now)
        self._place(late, late, now - 2 * PATIENCE)
        self._place(wants, scarce, now)
        self._trading.client.send(Pay(order=bought), id=f"pay-{bought}", timeout=240.0)
        self.bought.append(bought)
        self.late.append(late)
        self.scarce[scarce] += 1

    def missing(self) -> list[object]:
        """The ends that orders have not come to; of those who want what there are two of, anyone may be refused."""
        seen = happened(self._trading.settings)
        refused = Counter(event.why for event in seen if isinstance(event, Dropped))
        ends: list[object] = [Confirmed(order=order) for order in self.bought]
        ends += [Dropped(order=order, why="not paid in time") for order in self.late]
        few = [what for what, wanted in self.scarce.items() if wanted > 2 and not refused[f"no {what} left"]]
        return [end for end in ends if not seen[end]] + few

    def unbalanced(self) -> list[str]:
        """Products of which not as many are reserved in the end as there are orders that have not been dropped."""
        seen = happened(self._trading.settings)
        left = {product: seen[Reserved(product=product, order=product)] for product in (*self.bought, *self.late)}
        for product in left:
            left[product] -= seen[Released(product=product, order=product)]
        return [product for product, reserved in left.items() if reserved != (product in self.bought)]

    def _place(self, order: str, product: str, at: datetime) -> None:
        self._trading.client.send(Place(order=order, product=product, at=at), id=f"place-{order}", timeout=240.0)
