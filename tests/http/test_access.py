"""Who may call the gateway: keys, tokens of a provider whose keys change, certificates behind a proxy, and rules."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from leftfold.errors import ConfigurationError
from leftfold.http import Access, CertificateHeader, OpenIdProvider, Permission, Principal, hash_of
from leftfold.http import access as access_module
from leftfold.http.access import local_names
from leftfold.http.settings import HttpSettings
from tests.domains.shop import Add
from tests.http.calls import BASKETS, NDJSON, OPEN, called, problem_in
from tests.listening import Request, listening
from tests.waiting import WAIT_SECONDS

VIEW = "/views/open_baskets"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a provider come from a thread of this process."""
    monkeypatch.setattr(access_module, "_FETCH_SECONDS", WAIT_SECONDS)


class Provider:
    """An OpenID provider on this machine: its discovery document, its keys, and tokens that it signs."""

    def __init__(self) -> None:
        self.issuer = ""
        self.keys: dict[str, rsa.RSAPrivateKey] = {}
        self.fetches = 0
        self.is_down = False
        self.rotate("first")

    def answer(self, request: Request) -> tuple[int, bytes]:
        self.fetches += 1
        if self.is_down:
            return 503, b""
        found: Any = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}
        if request.path == "/keys":
            found = {"keys": [public(id_, key) for id_, key in self.keys.items()]}
        return 200, json.dumps(found).encode()

    def rotate(self, id_: str) -> None:
        """Replaces the key."""
        self.keys = {id_: rsa.generate_private_key(public_exponent=65537, key_size=2048)}

    def token(self, **claims: Any) -> str:
        """A token with these claims beside the usual ones; None leaves one out."""
        ((id_, key),) = self.keys.items()
        usual = {"iss": self.issuer, "aud": "shop", "sub": "ann", "exp": datetime.now(UTC) + timedelta(minutes=5)}
        found = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return jwt.encode(found, key, "RS256", headers={"kid": id_})


def public(id_: str, key: rsa.RSAPrivateKey) -> Mapping[str, Any]:
    return {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": id_, "use": "sig", "alg": "RS256"}


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider()
    with listening(found.answer) as found.issuer:
        yield found


async def status(http: httpx.AsyncClient, token: str) -> int:
    return (await http.get(VIEW, headers={"Authorization": f"Bearer {token}"})).status_code


@contextmanager
def seen_by() -> Iterator[tuple[list[tuple[Principal, Permission]], Any]]:
    """What an `authorize` is asked, and the function."""
    seen: list[tuple[Principal, Permission]] = []

    async def authorize(principal: Principal, permission: Permission) -> bool:
        seen.append((principal, permission))
        return True

    yield seen, authorize


def test_callers_need_a_known_key_and_the_right() -> None:
    def authorize(principal: Principal, permission: Permission) -> bool:
        return permission.kind == "view" or "writer" in principal.roles

    keys: dict[str, str | Principal] = {
        hash_of("secret"): Principal("shop", frozenset({"writer"})),
        hash_of("other"): "reader",
    }

    async def calls(http: httpx.AsyncClient) -> None:
        problem = await http.post(f"{BASKETS}/Open", json=OPEN)
        assert "X-API-Key" in problem_in(problem, 401)["detail"]
        assert problem.headers["WWW-Authenticate"] == "Bearer"
        problem_in(await http.post(f"{BASKETS}/Open", json={"not": "a command"}), 401)  # before anything else is said
        problem_in(await http.post(f"{BASKETS}/Open", json=OPEN, headers={"X-API-Key": "guess"}), 401)
        problem_in(await http.post(f"{BASKETS}/Open", json=OPEN, headers={"X-API-Key": "other"}), 403)
        problem_in(await http.get("/streams/baskets/b", headers={"X-API-Key": "other"}), 403)
        problem_in(await http.get("/changes/open_baskets"), 401)
        problem_in(await http.get("/events/baskets", headers={"X-API-Key": "other"}), 403)
        sent = await http.post(f"{BASKETS}/Open", json=OPEN, headers={"Authorization": "Bearer secret"})
        assert sent.status_code == 200
        shown = (await http.get("/streams/baskets/b", headers={"X-API-Key": "secret"})).json()
        assert [event["principal"] for event in shown["events"]] == ["shop"]
        assert (await http.get(VIEW, headers={"X-API-Key": "other"})).status_code == 200
        assert (await http.get("/health/live")).status_code == 200
        described = (await http.get("/openapi.json")).json()
        assert {"APIKeyHeader", "HTTPBearer"} == described["components"]["securitySchemes"].keys()
        assert described["paths"][VIEW]["get"]["security"]

    called(calls, access=Access(keys, authorize))


def test_a_gateway_that_asks_for_no_credentials_answers_under_its_own_names_alone() -> None:
    """Else a page of a site whose name leads to this machine could call it as its own."""

    async def calls(http: httpx.AsyncClient) -> None:
        for host, expected in (("localhost:8080", 200), ("[::1]", 200), ("LOCALHOST", 200), ("rebound.example", 421)):
            assert (await http.get(VIEW, headers={"Host": host})).status_code == expected
        detail = problem_in(await http.post(f"{BASKETS}/Open", json=OPEN), 421)["detail"]
        assert detail == "'test' is no name of this server, which asks for no credentials"

    called(calls, hosts=local_names("127.0.0.1"))


def test_a_rule_sees_the_command_and_the_key_and_of_a_batch_each_line() -> None:
    def authorize(principal: Principal, permission: Permission) -> bool:
        command = permission.command
        return permission.key != "secret" and not (isinstance(command, Add) and command.basket_id != "b")

    async def calls(http: httpx.AsyncClient) -> None:
        assert (await http.post(f"{BASKETS}/Open", json=OPEN)).status_code == 200
        lines = [{"basket_id": key, "product": "milk", "price": "1"} for key in ("b", "other", "b")]
        answer = await http.post(f"{BASKETS}/Add:batch", content="\n".join(map(json.dumps, lines)), headers=NDJSON)
        own, others, last = map(json.loads, answer.text.splitlines())
        assert (own["version"], others["status"], last["version"]) == (2, 403, 3)
        problem_in(await http.post(f"{BASKETS}/Add", json=lines[1]), 403)
        problem_in(await http.get(f"{VIEW}/secret"), 403)
        problem_in(await http.get("/streams/baskets/secret"), 403)
        for path in ("/changes/open_baskets", "/events/baskets"):
            problem_in(await http.get(path, params={"key": ["b", "secret"]}), 403)

    called(calls, access=Access(authorize=authorize))


@pytest.mark.parametrize(
    ("roles_claim", "claims"),
    [
        ("realm.roles", {"realm": {"roles": ["operator", 7]}}),
        ("https://shop.example/realm", {"https://shop.example/realm": ["operator", 7]}),
    ],
)
def test_a_token_names_the_caller_and_its_roles(provider: Provider, roles_claim: str, claims: dict[str, Any]) -> None:
    with seen_by() as (seen, authorize):
        provided = OpenIdProvider(provider.issuer, "shop", name_claim="email", roles_claim=roles_claim)

        async def calls(http: httpx.AsyncClient) -> None:
            token = provider.token(email="ann@shop.example", **claims)
            assert await status(http, token) == 200
            assert await status(http, token) == 200
            problem_in(await http.get(VIEW, headers={"Authorization": f"Bearer {provider.token()}"}), 401)

        called(calls, access=Access(authorize=authorize, provider=provided))
    principal, permission = seen[0]
    assert (principal.name, principal.roles) == ("ann@shop.example", frozenset({"operator"}))
    assert permission == Permission("view", "open_baskets")
    assert provider.fetches == 2  # the document and the keys, once
    assert "realm" not in repr(principal)


def test_tokens_that_are_expired_forged_or_for_others_are_refused(provider: Provider) -> None:
    ((id_, key),) = provider.keys.items()
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = jwt.decode(provider.token(), options={"verify_signature": False})
    unsigned = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": id_}).encode()).decode().rstrip("=")
    body = provider.token().split(".")[1]
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    secret = base64.urlsafe_b64encode(pem).decode()

    async def calls(http: httpx.AsyncClient) -> None:
        assert await status(http, provider.token()) == 200
        for token in (
            provider.token(exp=datetime.now(UTC) - timedelta(minutes=1)),
            provider.token(exp=None),
            provider.token(aud="another service"),
            provider.token(iss="https://elsewhere.example"),
            provider.token(sub=None),
            provider.token(nbf=datetime.now(UTC) + timedelta(minutes=5)),
            provider.token()[:-8] + "AAAAAAAA",
            f"{unsigned}.{body}.",
            jwt.encode(claims, stranger, "RS256", headers={"kid": id_}),
            jwt.encode(claims, secret, "HS256", headers={"kid": id_}),
            "a.b.c",
            "",
        ):
            problem = problem_in(await http.get(VIEW, headers={"Authorization": f"Bearer {token}"}), 401)
            assert not token or token not in str(problem)

    called(calls, access=Access(provider=OpenIdProvider(provider.issuer, "shop")))


def test_a_new_key_of_the_provider_is_fetched_but_invented_ones_cause_no_flood(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "_AGAIN_SECONDS", 0.0)

    async def calls(http: httpx.AsyncClient) -> None:
        old = provider.token()
        assert await status(http, old) == 200
        provider.rotate("second")
        assert await status(http, provider.token()) == 200
        assert await status(http, old) == 401  # its key is no longer published
        monkeypatch.setattr(access_module, "_AGAIN_SECONDS", 60.0)
        fetches = provider.fetches
        provider.rotate("never published")
        for _ in range(20):
            assert await status(http, provider.token()) == 401
        assert provider.fetches == fetches

    called(calls, access=Access(provider=OpenIdProvider(provider.issuer, "shop")))


def test_while_the_provider_is_down_known_keys_stay_in_use(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(access_module, "_KEYS_SECONDS", 0.0)

    async def calls(http: httpx.AsyncClient) -> None:
        provider.is_down = True
        answer = await http.get(VIEW, headers={"Authorization": f"Bearer {provider.token()}"})
        assert answer.headers["Retry-After"] == "1"
        problem_in(answer, 503)
        provider.is_down = False
        assert await status(http, provider.token()) == 200
        provider.is_down = True
        assert await status(http, provider.token()) == 200

    called(calls, access=Access(provider=OpenIdProvider(provider.issuer, "shop")))


def test_a_key_that_was_withdrawn_without_any_call_counts_no_more(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(access_module, "_KEYS_SECONDS", 0.0)

    async def calls(http: httpx.AsyncClient) -> None:
        stolen = provider.token()
        assert await status(http, stolen) == 200
        provider.rotate("the next one")
        assert await status(http, stolen) == 401
        assert await status(http, provider.token()) == 200

    called(calls, access=Access(provider=OpenIdProvider(provider.issuer, "shop")))


def test_a_certificate_counts_only_from_the_proxy() -> None:
    with seen_by() as (seen, authorize):

        async def calls(http: httpx.AsyncClient) -> None:
            assert (await http.get(VIEW, headers={"X-Client-Subject": "CN=till-7"})).status_code == 200
            problem_in(await http.get(VIEW), 401)

        async def forged(http: httpx.AsyncClient) -> None:
            problem_in(await http.get(VIEW, headers={"X-Client-Subject": "CN=till-7"}), 401)

        async def without(http: httpx.AsyncClient) -> None:
            for none in ("", "-", "(null)"):
                problem_in(await http.get(VIEW, headers={"X-Client-Subject": none}), 401)
            two = [("X-Client-Subject", "CN=forged"), ("X-Client-Subject", "CN=till-7")]
            problem_in(await http.get(VIEW, headers=two), 401)

        near, far = (CertificateHeader("X-Client-Subject", [proxies]) for proxies in ("127.0.0.0/8", "10.1.2.3"))
        called(calls, access=Access(authorize=authorize, certificates=near))
        called(forged, access=Access(authorize=authorize, certificates=far))
        called(without, access=Access(authorize=authorize, certificates=near))
    assert [principal.name for principal, _ in seen] == ["CN=till-7"]


def allow(principal: Principal, permission: Permission) -> bool:
    """A rule that settings name."""
    return True


def test_settings_name_callers_roles_provider_proxies_and_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hash_of("secret")
    for name, value in {
        "KEYS": f"shop={digest}, till:operator+reader={hash_of('other')}",
        "ISSUER": "https://login.example",
        "AUDIENCE": "shop",
        "CERTIFICATE_HEADER": "X-Client-Subject",
        "AUTHORIZE": "tests.http.test_access:allow",
    }.items():
        monkeypatch.setenv(f"LEFTFOLD_HTTP_{name}", value)
    access = HttpSettings().access()
    assert access.keys[digest] == Principal("shop")
    assert access.keys[hash_of("other")] == Principal("till", frozenset({"operator", "reader"}))
    assert (access.authorize, access.is_open) == (allow, False)
    assert access.provider is not None
    assert access.certificates is not None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("KEYS", "shop=secret", "no hash of 64 hex digits"),
        ("ISSUER", "https://login.example", "LEFTFOLD_HTTP_AUDIENCE"),
        ("AUDIENCE", "shop", "LEFTFOLD_HTTP_ISSUER"),
        ("AUTHORIZE", "tests.http:nothing", "no module:function"),
        ("CERTIFICATE_HEADER", "X", "proxies of the header X"),
    ],
)
def test_settings_that_are_wrong_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(f"LEFTFOLD_HTTP_{name}", value)
    if name == "CERTIFICATE_HEADER":
        monkeypatch.setenv("LEFTFOLD_HTTP_PROXIES", "the proxy")
    with pytest.raises(ConfigurationError, match=message) as error:
        HttpSettings().access()
    assert "secret" not in str(error.value)


def test_keys_of_a_provider_are_fetched_over_https_only() -> None:
    with pytest.raises(ConfigurationError, match="https"):
        OpenIdProvider("http://login.example", "shop")
