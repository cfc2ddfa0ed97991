"""Who may call the gateway: API keys, tokens of an OpenID provider, client certificates, and rules of one's own."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import ipaddress
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, build_opener
from urllib.request import Request as UrlRequest

import jwt
from fastapi import Request
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from leftfold.errors import ConfigurationError
from leftfold.http.problems import problem_response, refusal
from leftfold.model.messages import Command

__all__ = [
    "LEEWAY_SECONDS",
    "REFUSED_PORTS",
    "Access",
    "Authorize",
    "CertificateHeader",
    "KnownHosts",
    "OpenIdProvider",
    "Permission",
    "Principal",
    "hash_of",
    "is_loopback",
    "local_names",
]

REFUSED_PORTS = frozenset(
    {1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, *range(6665, 6670), 6679, 6697, 10080}
)
"""Ports at which browsers open no page, of those that a user may listen at (Fetch standard, section Port blocking)."""
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Only such with a public key: a secret that both sides know could be confused with one."""
LEEWAY_SECONDS = 10
_FETCH_SECONDS, _KEYS_SECONDS, _AGAIN_SECONDS = 5.0, 300.0, 10.0
"""How long fetching keys may take, how long they are used, and how soon an unknown key may cause another fetch."""
_MOST_BYTES = 262_144
_NO_SUBJECT = ("", "-", "(null)")
"""What proxies send without a certificate; the last is mod_headers' of Apache."""


@dataclass(frozen=True)
class Principal:
    """Who calls: a name, '' without authentication; the roles, and the claims of its token."""

    name: str = ""
    roles: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def expires(self) -> float | None:
        """When its token expires, in seconds since 1970."""
        found = self.claims.get("exp")
        return float(found) if isinstance(found, int | float) else None


class Permission(NamedTuple):
    """What a caller asks for.

    Args:
        name: `category.Command`, or the name of a view or category. command: the command that is sent; None for a
            batch as a whole and for the status of a command. key: of the row or stream; None for many.
    """

    kind: Literal["command", "view", "stream"]
    name: str
    command: Command | None = None
    key: str | None = None


Authorize: TypeAlias = Callable[[Principal, Permission], "bool | Awaitable[bool]"]
"""Whether a principal may do what it asks for."""


def hash_of(key: str) -> str:
    """The hash under which an API key is configured."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def local_names(host: str) -> tuple[str, ...]:
    """The names under which a server on this machine answers that asks for no credentials."""
    return ("localhost", "127.0.0.1", "::1", host)


class KnownHosts:
    """Refuses requests that name another host, so that no page of another site calls a server on this machine.

    Args:
        hosts: the names under which the application answers, without port.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app, self._hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers or refuses one request."""
        if scope["type"] in ("http", "websocket"):
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
            if name.strip("[]").lower() not in self._hosts:
                if scope["type"] == "http":
                    error = refusal(421, f"{name[:80]!r} is no name of this server, which asks for no credentials")
                    await problem_response(error, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class OpenIdProvider:
    """Checks tokens (JWT) of an OpenID provider with the keys that it publishes.

    A token must be signed with one of the keys, be meant for the audience, and not be expired. Keys are fetched again
    every five minutes, and when a token names one that is not known; while the provider does not answer, the known
    ones stay in use.

    Args:
        issuer: its address; `/.well-known/openid-configuration` below it says where the keys are.
        audience: whom the tokens must be meant for. keys_url: where the keys are, if there is no such document.
        name_claim: the claim that names the principal. roles_claim: the one with its roles, a list or words; where no
            claim has this name, its dots lead into one, as in "realm_access.roles".

    Raises:
        ConfigurationError: an address is not https, and not on this machine.
    """

    def __init__(
        self, issuer: str, audience: str, *, keys_url: str = "", name_claim: str = "sub", roles_claim: str = "roles"
    ) -> None:
        self._issuer, self._audience, self._keys_url = issuer, audience, keys_url
        self._name_claim, self._roles_claim = name_claim, roles_claim
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._fetched = self._tried = self._failed = float("-inf")
        self._fetching = asyncio.Lock()
        self._refresh: asyncio.Task[None] | None = None
        for url in filter(None, (issuer, keys_url)):
            _check_address(url)

    async def principal(self, token: str) -> Principal:
        """Who a token is of.

        Raises:
            ProblemError: 401: it is not valid; 503: the provider's keys cannot be fetched.
        """
        try:
            key = await self._key(jwt.get_unverified_header(token).get("kid"))
            claims = jwt.decode(
                token, key, algorithms=_ALGORITHMS, audience=self._audience, issuer=self._issuer,
                leeway=LEEWAY_SECONDS, options={"require": ["exp", "iss", "aud"]},
            )  # fmt: skip
        except jwt.PyJWTError as error:
            raise refusal(401, f"the token is not valid: {error}") from error
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not name:
            raise refusal(401, f"the token has no claim {self._name_claim!r}, which names the caller")
        return Principal(name, _roles_in(claims, self._roles_claim), claims)

    async def _key(self, id_: str | None) -> jwt.PyJWK:
        if id_ in self._keys and not self._may_be_withdrawn():
            if self._age() > _KEYS_SECONDS and self._may_fetch():
                self._refresh = asyncio.create_task(self._fetch())
            return self._keys[id_]
        # A key that is known may have been withdrawn since, if no caller came for a while.
        async with self._fetching:
            if (id_ not in self._keys or self._may_be_withdrawn()) and self._may_fetch():
                await self._fetch()
        if not self._keys:
            raise refusal(503, f"the keys of {self._issuer} cannot be fetched; come again in a few seconds")
        if id_ not in self._keys:
            raise refusal(401, f"the token is signed with a key that {self._issuer} does not publish")
        return self._keys[id_]

    def _may_be_withdrawn(self) -> bool:
        """Whether the keys are old, and the provider has not failed to give others since."""
        return self._age() > 2 * _KEYS_SECONDS and self._failed <= self._fetched

    def _age(self) -> float:
        """Seconds since the keys were fetched."""
        return time.monotonic() - self._fetched

    def _may_fetch(self) -> bool:
        """Whether the keys may be fetched now; callers with invented keys must not cause more fetches."""
        now = time.monotonic()
        if now - self._tried <= _AGAIN_SECONDS:
            return False
        self._tried = now
        return True

    async def _fetch(self) -> None:
        try:
            url = self._keys_url or (await asyncio.to_thread(_fetch_json, self._discovery()))["jwks_uri"]
            _check_address(url)
            found = jwt.PyJWKSet.from_dict(await asyncio.to_thread(_fetch_json, url))
        except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError, jwt.PyJWTError):
            self._failed = self._tried = time.monotonic()
            return  # the caller says so, unless older keys are known
        except ConfigurationError:
            self._failed = self._tried = time.monotonic()
            return
        self._keys = {key.key_id: key for key in found.keys}
        self._fetched = time.monotonic()

    def _discovery(self) -> str:
        return f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"


class CertificateHeader:
    """The subject of a client certificate, in a header that a TLS proxy sets after it has checked the certificate.

    Args:
        name: of the header; the proxy must remove it from requests of others.
        proxies: addresses or networks of the proxies; the header is refused from elsewhere.

    Raises:
        ConfigurationError: one of them is no address.
    """

    def __init__(self, name: str, proxies: Sequence[str]) -> None:
        self._name = name
        try:
            self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]
        except ValueError as error:
            raise ConfigurationError(f"proxies of the header {name}: {error}") from error

    def principal(self, request: Request) -> Principal | None:
        """Who the certificate is of; None when there is no such header, several, or it comes from elsewhere."""
        subjects, client = request.headers.getlist(self._name), request.client
        if len(subjects) != 1 or subjects[0].strip() in _NO_SUBJECT or client is None:
            return None
        try:
            address = ipaddress.ip_address(client.host)
        except ValueError:
            return None
        return Principal(subjects[0]) if any(address in proxy for proxy in self._proxies) else None


def _allow(principal: Principal, permission: Permission) -> bool:
    """Allows everything."""
    return True


@dataclass(frozen=True)
class Access:
    """The rules of a gateway; without keys, provider and certificates everybody may call.

    Args:
        keys: the caller by the hash of its API key: a name, or a principal with roles.
        provider: of tokens. certificates: behind a TLS proxy.
        authorize: whether a caller may do what it asks for; everything is allowed without one.
    """

    keys: Mapping[str, str | Principal] = field(default_factory=dict)
    authorize: Authorize = _allow
    provider: OpenIdProvider | None = None
    certificates: CertificateHeader | None = None

    @property
    def is_open(self) -> bool:
        """Whether callers need not say who they are."""
        return not self.keys and self.provider is None and self.certificates is None

    @property
    def schemes(self) -> list[APIKeyHeader | HTTPBearer]:
        """The ways to say who one is, for the description of the routes."""
        found: list[APIKeyHeader | HTTPBearer] = []
        if self.keys:
            found.append(APIKeyHeader(name="X-API-Key", auto_error=False))
        if self.keys or self.provider:
            found.append(HTTPBearer(auto_error=False, description="An API key, or a token of the provider."))
        return found

    async def principal(self, request: Request) -> Principal:
        """Who sent a request.

        Raises:
            ProblemError: 401: its credentials are missing or not valid; 503: they cannot be checked now.
        """
        if self.is_open:
            return Principal()
        if isinstance(known := getattr(request.state, "principal", None), Principal):
            return known
        found = request.state.principal = await self._authenticated(request)
        return found

    async def _authenticated(self, request: Request) -> Principal:
        if self.certificates is not None and (found := self.certificates.principal(request)) is not None:
            return found
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = request.headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
        hashed = hash_of(given)
        for known, caller in self.keys.items():
            if hmac.compare_digest(hashed, known):
                return caller if isinstance(caller, Principal) else Principal(caller)
        if self.provider is not None and given.count(".") == 2:
            return await self.provider.principal(given)
        ways = ["an API key in the header X-API-Key, or as Authorization: Bearer KEY"] if self.keys else []
        ways += ["a token of the provider as Authorization: Bearer TOKEN"] if self.provider else []
        ways += ["a client certificate to the proxy"] if self.certificates else []
        raise refusal(401, f"send {'; or '.join(ways)}")

    async def check_command(self, request: Request, cls: type[Command], command: Command | None = None) -> Principal:
        """Checks that a request may send a command, or any of its class.

        Raises:
            ProblemError: 401, 403 or 503.
        """
        spec = cls.__leftfold__
        principal = await self.principal(request)
        await self.check(principal, Permission("command", f"{spec.category}.{spec.name}", command))
        return principal

    async def check_view(self, request: Request, name: str, key: str | None = None) -> Principal:
        """Checks that a request may read a view. Raises ProblemError: 401, 403 or 503."""
        await self.check(principal := await self.principal(request), Permission("view", name, key=key))
        return principal

    async def check_stream(self, request: Request, category: str, key: str | None = None) -> Principal:
        """Checks that a request may read the events of a category. Raises ProblemError: 401, 403 or 503."""
        await self.check(principal := await self.principal(request), Permission("stream", category, key=key))
        return principal

    async def check(self, principal: Principal, permission: Permission) -> None:
        """Checks that a principal may do something. Raises ProblemError: 403."""
        may = self.authorize(principal, permission)
        if not (await may if inspect.isawaitable(may) else may):
            raise refusal(403, f"{principal.name or 'this caller'} may not use {permission.kind} {permission.name}")


def _roles_in(claims: Mapping[str, Any], path: str) -> frozenset[str]:
    found: Any = claims
    for name in [path] if path in claims else path.split("."):  # https://shop.example/roles is the name of a claim
        found = found.get(name) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        found = found.split()
    return frozenset(role for role in found if isinstance(role, str)) if isinstance(found, list) else frozenset()


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise ConfigurationError(f"{url!r} must begin with https://: keys and tokens would not be safe on the way")


class _SafeRedirects(HTTPRedirectHandler):
    """Follows no redirect from https to http."""

    def redirect_request(self, req: UrlRequest, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch_json(url: str) -> Any:
    asked = UrlRequest(url, headers={"Accept": "application/json"})  # noqa: S310  # _check_address allows http(s) alone
    with build_opener(_SafeRedirects).open(asked, timeout=_FETCH_SECONDS) as answer:
        return json.loads(answer.read(_MOST_BYTES))
