"""The HTTP gateway: commands, views and health of an App as typed routes of FastAPI."""

from __future__ import annotations

from leftfold.http.access import Access, CertificateHeader, OpenIdProvider, Permission, Principal, hash_of
from leftfold.http.gateway import gateway, router
from leftfold.http.gateway_server import GatewayServer

__all__ = [
    "Access",
    "CertificateHeader",
    "GatewayServer",
    "OpenIdProvider",
    "Permission",
    "Principal",
    "gateway",
    "hash_of",
    "router",
]
