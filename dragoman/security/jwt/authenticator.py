"""JSON Web Tokens: a caller is whom its issuer, in a signed token, says it is.

Keys come from one source, and that decides the algorithms: an issuer's public keys never check
what was made with a shared secret. What a token says about where its key is (`jku`, `x5u`, `jwk`,
`x5c`) is not looked at.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dragoman.egress.egress import Egress
from dragoman.errors import ConfigError
from dragoman.model.clock import Clock
from dragoman.model.message import Json
from dragoman.security.authentication import (
    CredentialRefused,
    Evidence,
    Pass,
    PresentedCredential,
    bearer_token,
)
from dragoman.security.jwt.claims import Expected, owner_of, read_claims
from dragoman.security.jwt.flows import Flows, schemes
from dragoman.security.jwt.form import ParsedToken, claimed_subject, is_shaped, read_token
from dragoman.security.jwt.jwks import DISCOVERY, RemoteKeys
from dragoman.security.jwt.key_sources import FileKeys, FixedKeys, KeySource
from dragoman.security.jwt.verification_keys import (
    ASYMMETRIC,
    LONGEST_KID,
    SYMMETRIC,
    VerificationKey,
    check_extra,
    from_secret,
    holds,
)


class JwtAuthenticator:
    """Lets in the bearers of tokens from one issuer.

    Give one source of keys: `jwks_url`, `key_file` (a JWKS document or PEM) or `secret`; with none
    of them the issuer is asked where its keys are, as OpenID Connect has it.
    """

    challenge = 'Bearer realm="dragoman"'
    reads = frozenset({b"authorization"})

    def __init__(
        self,
        *,
        issuer: str,
        audience: Sequence[str],
        jwks_url: str = "",
        key_file: str | Path = "",
        secret: bytes = b"",
        algorithms: Sequence[str] = (),
        leeway: float = 60.0,
        owner_claim: str = "sub",
        tenant_claim: str = "",
        token_type: str = "",
        parties: Sequence[str] = (),
        token_url: str = "",
        authorization_url: str = "",
        device_url: str = "",
        scopes: Mapping[str, str] | None = None,
        name: str = "",
        allow_private: bool = False,
        egress: Egress | None = None,
        now: Callable[[], float] = time.time,
        clock: Clock | None = None,
    ) -> None:
        check_extra()
        self._expected = Expected(
            issuer=issuer,
            audience=frozenset(audience),
            parties=frozenset(parties),
            leeway=leeway,
            owner_claim=owner_claim,
            tenant_claim=tenant_claim,
            token_type=token_type,
        )
        self._expected.check()
        # What decides whom a token speaks for: with other settings it is another credential.
        rules = (issuer, sorted(audience), owner_claim, tenant_claim)
        self._mark = hashlib.sha256(repr(rules).encode()).hexdigest()
        if sum(map(bool, (jwks_url, key_file, secret))) > 1:
            raise ConfigError("jwt: give the keys in one way: a URL, a file or a secret")
        self._algorithms = _accepted(algorithms, SYMMETRIC if secret else ASYMMETRIC)
        self._now = now
        self._remote: RemoteKeys | None = None
        self._source: KeySource
        if secret:
            self._source = FixedKeys(from_secret(secret))
        elif key_file:
            self._source = FileKeys(key_file)
        else:
            self._source = self._remote = RemoteKeys(
                url=jwks_url,
                issuer=issuer,
                allow_private=allow_private,
                egress=egress,
                clock=clock,
            )
        self._flows = Flows(token_url, authorization_url, device_url, scopes or {})
        is_oidc = self._remote is not None and not jwks_url
        self._discovery_url = issuer.rstrip("/") + DISCOVERY if is_oidc else ""
        self.name = name or ("oauth2" if token_url else "oidc" if is_oidc else "jwt")
        self.schemes = schemes(self.name, self._flows, self._discovery_url)

    def __repr__(self) -> str:
        return f"JwtAuthenticator({self._expected.issuer!r})"

    async def start(self) -> None:
        """Get the keys; raises `ConfigError` for a file that has none."""
        await self._source.start()

    async def stop(self) -> None:
        """Get no more keys."""
        await self._source.stop()

    def flows(self) -> dict[str, Json]:
        """Return the ways to get a token, as given or as the issuer describes itself."""
        if self._flows.token_url or self._remote is None:
            return self._flows.described()
        return self._flows.with_endpoints(self._remote.endpoints).described()

    async def authenticate(self, evidence: Evidence) -> Pass | None:
        """Return whom a token speaks for; None if there is none; raises `CredentialRefused`."""
        text = bearer_token(evidence)
        if text is None or not is_shaped(text):
            return None
        token = read_token(text, self._expected.token_type)
        subject = claimed_subject(token.claims)
        if token.algorithm not in self._algorithms:
            raise CredentialRefused("the algorithm is not accepted", subject)
        if len(token.kid) > LONGEST_KID:
            raise CredentialRefused("the name of the key is too long", subject)
        claims = read_claims(token.claims, self._expected, self._now(), evidence.certificate)
        key = await self._signer(token, subject)
        # A token without a name of its own goes by its digest.
        id = claims.id or hashlib.sha256(text.encode()).hexdigest()[:32]
        name = owner_of(self._expected.issuer, id)
        credential = PresentedCredential(name, key.ref, self._mark, claims.expires_at)
        return Pass(claims.caller, self, claims.until, key.ref, credential)

    def still_holds(self, found: Pass) -> bool:
        """Tell whether the key behind a pass is still one of the issuer's."""
        return found.ref in self._source.current().refs

    def recall(self, name: str, ref: str) -> list[PresentedCredential]:
        """Return a token of the issuer's, as far as that can be told without it: whether the key
        that signed it is still one of the issuer's. Who made something by it keeps its end."""
        is_ours = name.startswith(owner_of(self._expected.issuer, ""))
        if not is_ours or ref not in self._source.current().refs:
            return []
        return [PresentedCredential(name, ref, self._mark)]

    async def _signer(self, token: ParsedToken, subject: str) -> VerificationKey:
        """Return the key that signed a token; raises `CredentialRefused` if none did."""
        known = self._source.current().key_for(token)
        if known is not None and holds(known, token):
            return known
        # The issuer may have another key by this name, or by none, since we last looked.
        found = (await self._source.renewed(token.kid)).key_for(token)
        if found is None:
            raise CredentialRefused("the key is not known", subject)
        if (known is not None and found.ref == known.ref) or not holds(found, token):
            raise CredentialRefused("the signature does not hold", subject)
        return found


def _accepted(named: Sequence[str], possible: Mapping[str, object]) -> frozenset[str]:
    """Return the algorithms to accept; raises `ConfigError` for one that the keys are not for."""
    for name in named:
        if name not in possible:
            raise ConfigError(
                f"jwt: the algorithm {name!r} is not for this source of keys: "
                f"choose among {', '.join(possible)}"
            )
    return frozenset(named or possible)
