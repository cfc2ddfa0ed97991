"""An App whose SQL must not pass."""

from __future__ import annotations

from leftfold import App, QueryView
from tests.domains.ledger import Moved
from tests.spark.queries import OwnerSums

hostile = App(
    "hostile",
    views=[
        QueryView(
            "reflecting", events=Moved, row=OwnerSums, key=lambda r: r.owner, query="SELECT reflect('a') FROM Moved"
        ),
        QueryView("lacking", events=Moved, row=OwnerSums, key=lambda r: r.owner, query="SELECT owner FROM Moved"),
    ],
)
