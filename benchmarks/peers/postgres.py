"""The carts of `benchmarks/gateway.py` on FastAPI, SQLAlchemy and PostgreSQL: events and rows in one transaction.

python postgres.py FOLDER PORT     prints `ready` once it serves
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal

import pgserver
import uvicorn
from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel
from sqlalchemy import BigInteger, DateTime, ForeignKey, Numeric, String, UniqueConstraint, select
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

POOL = 32


class Base(DeclarativeBase):  # type: ignore[misc]  # its types are in an environment of its own
    """The tables."""


class Cart(Base):
    """A cart as it is now; its version guards against concurrent changes."""

    __tablename__ = "carts"
    key: Mapped[str] = mapped_column(String, primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger)
    items: Mapped[int] = mapped_column(BigInteger)
    total: Mapped[Decimal] = mapped_column(Numeric)


class Happened(Base):
    """An event of a cart; the command's id makes a repetition harmless."""

    __tablename__ = "events"
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=True)
    cart: Mapped[str] = mapped_column(ForeignKey("carts.key"))
    version: Mapped[int] = mapped_column(BigInteger)
    command: Mapped[str] = mapped_column(String, unique=True)
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    body: Mapped[dict] = mapped_column(JSONB)
    __table_args__ = (UniqueConstraint("cart", "version"),)


class Put(BaseModel):
    """The command."""

    cart: str
    product: str
    quantity: int
    price: Decimal


def application(url: str) -> FastAPI:
    """The service."""
    engine = create_async_engine(url, pool_size=POOL, max_overflow=POOL)
    sessions = async_sessionmaker(engine, expire_on_commit=False)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        print("ready", flush=True)
        yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/commands/carts/Put")
    async def put(command: Put, idempotency_key: str = Header()) -> dict[str, object]:
        if command.quantity < 1:
            raise HTTPException(422, "quantity")
        async with sessions() as session, session.begin():
            cart = await _locked(session, command.cart)
            cart.version += 1
            cart.items += command.quantity
            cart.total += command.quantity * command.price
            body = command.model_dump(mode="json")
            added = await session.execute(
                insert(Happened)
                .values(cart=cart.key, version=cart.version, command=idempotency_key, at=datetime.now(UTC), body=body)
                .on_conflict_do_nothing(index_elements=["command"])
                .returning(Happened.number)
            )
            if added.first() is None:
                raise HTTPException(409, "decided before")
            return {"id": idempotency_key, "version": cart.version, "events": 1}

    @app.get("/views/carts/{key}")
    async def get(key: str) -> dict[str, object]:
        async with sessions() as session:
            cart = await session.get(Cart, key)
        if cart is None:
            raise HTTPException(404)
        return {"items": cart.items, "total": str(cart.total), "version": cart.version}

    return app


async def _locked(session: AsyncSession, key: str) -> Cart:
    await session.execute(insert(Cart).values(key=key, version=0, items=0, total=Decimal(0)).on_conflict_do_nothing())
    return (await session.execute(select(Cart).where(Cart.key == key).with_for_update())).scalar_one()  # type: ignore[no-any-return]  # the same


def main() -> None:
    """Starts a PostgreSQL in a folder, and serves until it is ended."""
    folder, port = sys.argv[1:]
    server = pgserver.get_server(folder)
    server.psql("ALTER SYSTEM SET max_connections = 200; ALTER SYSTEM SET shared_buffers = '256MB';")
    url = server.get_uri().replace("postgresql://", "postgresql+asyncpg://")
    try:
        uvicorn.run(application(url), host="127.0.0.1", port=int(port), log_level="warning", access_log=False)
    finally:
        server.cleanup()


if __name__ == "__main__":
    main()
