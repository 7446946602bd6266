"""Sessions of the console: a sealed cookie that holds the credential that was typed in.

The server keeps nothing but the ids of sessions that were ended early, in the store: any replica
and the next process know a session, and that it ended. It is sealed with the store's secret, holds
for eight hours and never longer than the credential in it: each request shows it again.
"""

import base64
import binascii
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

import msgspec

from dragoman.http.guard import LOCAL_NAMES
from dragoman.http.request import Headers, HttpRequest
from dragoman.server.store_marks import StoreMarks

LASTS_SECONDS = 8 * 3600
# A browser drops a cookie of more than 4,096 bytes; sealing makes a third more of it.
MAX_CREDENTIAL_BYTES = 2600
_NONCE_BYTES = 12
# What is sealed: one kind cannot be shown as another.
_SESSION = b"session"


class VisitorSession(msgspec.Struct, frozen=True, array_like=True):
    """A visitor: an id, and the headers that say who it is; none before a login."""

    id: str
    made_at: float
    header: str = ""
    value: str = ""

    @property
    def credential(self) -> Headers:
        """The headers to show."""
        return [(self.header.encode(), self.value.encode())] if self.header else []

    def __repr__(self) -> str:
        return f"VisitorSession({self.id!r}, header={self.header!r}, value='***')"


_decode = msgspec.json.Decoder(VisitorSession).decode


class Sessions:
    """Makes, seals, knows and ends sessions."""

    def __init__(
        self,
        secret: Callable[[], bytes],
        ended: StoreMarks,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._secret = secret
        self._ended = ended
        self._now = now

    def begin(self, header: str = "", value: str = "") -> VisitorSession:
        """Return a new session, with an id that no earlier one had."""
        return VisitorSession(os.urandom(16).hex(), self._now(), header, value)

    async def read(self, request: HttpRequest) -> VisitorSession | None:
        """Return the session of a request; None: there is none, or it holds no more."""
        sealed = read_cookie(request, cookie_name(request))
        session = self._unsealed(sealed) if sealed else None
        return session if session is not None and await self.holds(session) else None

    async def holds(self, session: VisitorSession) -> bool:
        """Tell whether a session has neither been ended nor outlived its time."""
        if not 0 <= self._now() - session.made_at < LASTS_SECONDS:
            return False
        # Without a credential there is nothing to end.
        return not (session.header and await self._ended.has(session.id))

    async def end(self, session: VisitorSession) -> None:
        """Take a session for none from now on, in every process of the store."""
        await self._ended.add(session.id)

    def cookie(self, request: HttpRequest, session: VisitorSession) -> tuple[bytes, bytes]:
        """Return the header that gives a browser its session."""
        left = max(0, int(session.made_at + LASTS_SECONDS - self._now()))
        return _set_cookie(request, self.seal(msgspec.json.encode(session), _SESSION), left)

    def forget(self, request: HttpRequest) -> tuple[bytes, bytes]:
        """Return the header that takes a session from a browser."""
        return _set_cookie(request, "", 0)

    # Forms

    def form_token(self, session: VisitorSession) -> str:
        """Return a token for the forms of a session: other bytes each time."""
        nonce = os.urandom(8).hex()
        return f"{nonce}{self._mark(session, nonce)}"

    def is_own(self, session: VisitorSession, token: str) -> bool:
        """Tell whether a form was drawn for this session."""
        nonce, mark = token[:16], token[16:]
        return hmac.compare_digest(mark.encode(), self._mark(session, nonce).encode())

    # Sentences that one page gives to the next

    def notice_query(self, session: VisitorSession, text: str) -> str:
        """Return what the address of the next page has of a sentence that is to be shown there."""
        return urlencode({"notice": text, "by": self._mark(session, f"notice {text}")})

    def notice(self, session: VisitorSession, query: Mapping[str, str]) -> str:
        """Return the sentence in an address, if a page of this session put it there: no other site
        makes a page of ours say something."""
        text = query.get("notice", "")
        own = self._mark(session, f"notice {text}").encode()
        return text if hmac.compare_digest(query.get("by", "").encode(), own) else ""

    def _mark(self, session: VisitorSession, nonce: str) -> str:
        text = f"form {session.id} {nonce}".encode()
        return hmac.digest(self._key(b"console form "), text, hashlib.sha256).hex()[:32]

    # Sealing

    def _key(self, purpose: bytes) -> bytes:
        return hashlib.sha256(purpose + self._secret()).digest()

    def seal(self, content: bytes, kind: bytes) -> str:
        """Return a text that only a process of this store can open, and as nothing else."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._key(b"console session ")).encrypt(nonce, content, kind)
        return base64.urlsafe_b64encode(nonce + sealed).rstrip(b"=").decode()

    def unseal(self, text: str, kind: bytes) -> bytes | None:
        """Return what was sealed as this kind; None: it was not, or it was changed."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            given = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            nonce, sealed = given[:_NONCE_BYTES], given[_NONCE_BYTES:]
            return AESGCM(self._key(b"console session ")).decrypt(nonce, sealed, kind)
        except (ValueError, binascii.Error, InvalidTag):
            return None

    def _unsealed(self, text: str) -> VisitorSession | None:
        content = self.unseal(text, _SESSION)
        try:
            return None if content is None else _decode(content)
        except msgspec.MsgspecError:
            return None


def is_local_host(request: HttpRequest) -> bool:
    """Tell whether a browser on this machine asks, by a name that only this machine has."""
    host = (request.header(b"host") or "").lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name in LOCAL_NAMES and request.scope.get("scheme") != "https"


def cookie_name(request: HttpRequest) -> str:
    """Return the name of the cookie. Browsers take `__Host-` only with TLS, which a server on this
    machine does not have; and they do not tell ports apart, so its port is in the name."""
    if not is_local_host(request):
        return "__Host-dragoman"
    port = (request.header(b"host") or "").rpartition(":")[2]
    return f"dragoman-{port}" if port.isdecimal() else "dragoman"


def _set_cookie(request: HttpRequest, value: str, seconds: int) -> tuple[bytes, bytes]:
    return make_cookie(request, cookie_name(request), value, seconds, "Strict")


def make_cookie(
    request: HttpRequest, name: str, value: str, seconds: int, same_site: str
) -> tuple[bytes, bytes]:
    """Return the header that gives a browser a cookie that no script reads."""
    secure = "" if is_local_host(request) else "; Secure"
    text = f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite={same_site}"
    return b"set-cookie", f"{text}{secure}".encode()


def read_cookie(request: HttpRequest, name: str) -> str:
    """Return a cookie; empty: there is none, or there are two, and either may be another's."""
    values = [
        value
        for header, text in request.scope["headers"]
        if header == b"cookie"
        for one in text.decode("latin-1").split(";")
        for key, _, value in [one.strip().partition("=")]
        if key == name
    ]
    return values[0] if len(values) == 1 else ""
