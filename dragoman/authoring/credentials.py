"""Credentials that callers hand over to a turn, encrypted to a key that only this server has.

The key is stored with the question, sealed, and deleted when the answer is there or no longer
waited for. Gateways and agents in between pass on what they cannot read.
"""

from collections.abc import Mapping
from typing import Any, get_args
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from msgspec import UNSET

from dragoman.authoring.asking import Questioner, wanted
from dragoman.engine.running.worker import Worker
from dragoman.errors import RequestFailed
from dragoman.model.content import Content
from dragoman.model.requests import AuthType, Handoff, Request, RequestReply
from dragoman.model.task import TaskState
from dragoman.security import handoff

# Seconds to hand one over.
TIMEOUT = 900.0
_PKCE = frozenset({"code_challenge", "code_challenge_method"})
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class ReceivedCredential(msgspec.Struct, frozen=True, omit_defaults=True):
    """A credential that a caller handed over; its `repr` does not show it."""

    auth_type: AuthType
    # The secret itself; of `oauth2` the code, to be exchanged for a token with the verifier.
    value: str
    verifier: str = ""

    def __repr__(self) -> str:
        return f"Credential({self.auth_type!r}, '***')"


class _OpenSecrets(msgspec.Struct, frozen=True, omit_defaults=True):
    """The secrets of a question while it is open."""

    key: dict[str, Any]
    verifier: str = ""

    def __repr__(self) -> str:
        return "_OpenSecrets('***')"


_decode_secrets = msgspec.json.Decoder(_OpenSecrets).decode
_decode = msgspec.json.Decoder(ReceivedCredential).decode


class _Lock:
    """The key of one request."""

    def __init__(self, worker: Worker, auth_type: AuthType, url: str) -> None:
        self._worker = worker
        self._auth_type: AuthType = auth_type
        self._url = url

    async def load(self) -> None:
        """Load the encryption library."""
        await handoff.load()

    def new_key(self) -> bytes:
        """Return a fresh key, and a verifier where a code is to come."""
        verifier = handoff.verifier() if self._url else ""
        return msgspec.json.encode(_OpenSecrets(handoff.fresh(), verifier))

    def with_public_key(self, request: Request, key: bytes) -> Request:
        """Return the request with the public key that a client encrypts to."""
        own, log = _decode_secrets(key), self._worker.log
        shown = Handoff(
            auth_id=request.request_id,
            context_id=log.context_id,
            auth_type=self._auth_type,
            key=handoff.public(own.key, request.request_id),
            due=request.due,
            agent_id=log.scope.agent,
            authorization_url=_with_challenge(self._url, own.verifier, request.request_id),
        )
        return msgspec.structs.replace(request, handoff=shown)

    def opened(self, request: Request, key: bytes, reply: RequestReply) -> bytes | str:
        """Return the credential, or why there is none."""
        own = _decode_secrets(key)
        assert request.handoff is not None, "it was shown"
        try:
            now = self._worker.clock.now() / 1000
            value = handoff.opened(reply.result, own.key, request.handoff, now)
        except handoff.Unopened as problem:
            return f"{problem}."
        return msgspec.json.encode(ReceivedCredential(self._auth_type, value, own.verifier))


class CredentialQuestioner(Questioner):
    """The questions of a turn, those for credentials included."""

    async def credential(
        self,
        auth_type: AuthType,
        content: Content,
        *,
        url: str = "",
        params: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
    ) -> ReceivedCredential:
        """Have the caller hand over a credential (`auth-required`), encrypted for this request
        alone: agents in between cannot read it, and it can be used once. Needs the extra `jwt`.

        Of `oauth2`, `url` and `params` are where a person signs in; the challenge of PKCE (S256)
        is added, and the answer is the code with the verifier. Raises `InputTimeout` if nothing
        came in time, `RequestFailed` if the caller declined."""
        if auth_type not in get_args(AuthType):
            raise ValueError(f"auth_type is one of {', '.join(get_args(AuthType))}")
        if (auth_type == "oauth2") != bool(url):
            raise ValueError("url is where a person signs in: oauth2 needs it, no other takes it")
        if timeout <= 0:
            raise ValueError("timeout is more than 0 seconds")
        request = Request("", "credential", sensitive=True)
        question = wanted("credential", content, request, None, timeout, UNSET)
        question = msgspec.structs.replace(
            question,
            state=TaskState.AUTH_REQUIRED,
            lock=_Lock(self._worker, auth_type, _address(url, params or {})),
        )
        answer = await self._answered(question, UNSET)
        assert answer is not None, "without a default there is an answer, or an error"
        if not answer.opened:
            raise RequestFailed("The credential is not kept any more: ask for it again.")
        return _decode(answer.opened)


def _address(url: str, params: Mapping[str, str]) -> str:
    """Return where a person signs in, without the members that belong to one request."""
    if not url:
        return ""
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and parts.hostname in _LOCAL
    if not parts.hostname or not (parts.scheme == "https" or is_local):
        raise ValueError("url is the https address where a person signs in")
    query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **params}
    if query.keys() & _PKCE:
        raise ValueError("the challenge of PKCE is made here: leave it out of url and params")
    query.setdefault("response_type", "code")
    return urlunsplit(parts._replace(query=urlencode(query), fragment=""))


def _with_challenge(url: str, verifier: str, auth_id: str) -> str:
    if not url:
        return ""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    query.setdefault("state", auth_id)
    query |= {"code_challenge": handoff.challenge(verifier), "code_challenge_method": "S256"}
    return urlunsplit(parts._replace(query=urlencode(query)))
