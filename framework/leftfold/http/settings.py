"""Who may call `leftfold serve`, as settings."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from pydantic_settings import BaseSettings, SettingsConfigDict

from leftfold.errors import ConfigurationError
from leftfold.http.access import Access, Authorize, CertificateHeader, OpenIdProvider, Principal

__all__ = ["HttpSettings"]


class HttpSettings(BaseSettings):
    """Who may call the gateway; environment variables begin with LEFTFOLD_HTTP_.

    Args:
        keys: API keys by their hash: NAME=HASH or NAME:ROLE+ROLE=HASH, with commas between.
        issuer: the address of an OpenID provider. audience: whom its tokens must be meant for. keys_url: where its keys
            are, if it has no discovery document. name_claim, roles_claim: of the token.
        certificate_header: the header in which a TLS proxy gives the subject of a client certificate. proxies: their
            addresses or networks, with commas between.
        authorize: `module:function` that says whether a principal may do something.
    """

    model_config = SettingsConfigDict(
        env_prefix="LEFTFOLD_HTTP_", env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    keys: str = ""
    issuer: str = ""
    audience: str = ""
    keys_url: str = ""
    name_claim: str = "sub"
    roles_claim: str = "roles"
    certificate_header: str = ""
    proxies: str = "127.0.0.1"
    authorize: str = ""

    def access(self) -> Access:
        """The rules of a gateway with these settings.

        Raises:
            ConfigurationError: they are wrong; its message names the setting.
        """
        provider = certificates = None
        if not self.issuer and (self.audience or self.keys_url):
            raise ConfigurationError(
                "LEFTFOLD_HTTP_AUDIENCE and LEFTFOLD_HTTP_KEYS_URL need LEFTFOLD_HTTP_ISSUER, the provider's address"
            )
        if self.issuer:
            if not self.audience:
                raise ConfigurationError("LEFTFOLD_HTTP_ISSUER needs LEFTFOLD_HTTP_AUDIENCE: whom tokens are for")
            provider = OpenIdProvider(
                self.issuer, self.audience, keys_url=self.keys_url,
                name_claim=self.name_claim, roles_claim=self.roles_claim,
            )  # fmt: skip
        if self.certificate_header:
            proxies = [proxy.strip() for proxy in self.proxies.split(",") if proxy.strip()]
            certificates = CertificateHeader(self.certificate_header, proxies)
        rules = {"authorize": _function(self.authorize)} if self.authorize else {}
        return Access(self._callers(), provider=provider, certificates=certificates, **rules)

    def _callers(self) -> dict[str, str | Principal]:
        found: dict[str, str | Principal] = {}
        for part in filter(None, (part.strip() for part in self.keys.split(","))):
            caller, _, digest = part.partition("=")
            name, _, roles = caller.partition(":")
            if not name or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
                raise ConfigurationError(
                    f"LEFTFOLD_HTTP_KEYS holds NAME=HASH with commas between; what stands behind {name[:40]!r} is no "
                    "hash of 64 hex digits; make one: leftfold serve --new-key NAME"
                )
            found[digest] = Principal(name, frozenset(filter(None, roles.split("+"))))
        return found


def _function(path: str) -> Authorize:
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"LEFTFOLD_HTTP_AUTHORIZE is {path!r}, and no module:function: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"LEFTFOLD_HTTP_AUTHORIZE is {path!r}, which cannot be called")
    return cast("Authorize", found)
