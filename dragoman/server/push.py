"""Push, wired: the engine's logs, the guarded client and the sender, joined."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.config import Settings
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.engine.engine import Engine
from dragoman.errors import ConfigError
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded
from dragoman.model.task import Task
from dragoman.stores.interface import Push, Store

if TYPE_CHECKING:
    from dragoman.push.sender import Sender
    from dragoman.push.token import Tokens
    from dragoman.security.egress import Egress

_GRACE = 2.0
_CLAIM_AT_ONCE = 200


class PostRoom:
    """Delivers for every agent of an app. What dials out is loaded when the first receiver comes:
    most processes never have one, and it takes as long to load as all the rest."""

    def __init__(
        self, store: Store, settings: Settings, engine_of: Callable[[str], Engine | None]
    ) -> None:
        self._store = store
        self._settings = settings
        self._engine_of = engine_of
        self._sender: Sender | None = None
        self._egress: Egress | None = None
        check(settings)
        # Opening the secret takes a while, so it is not done for nothing.
        self._tokens = tokens_of(settings, store.secret if settings.push_tokens else b"")

    def keys(self) -> dict[str, Any] | None:
        """Return the public keys of our tokens, if posts carry any."""
        return None if self._tokens is None else self._tokens.document()

    def check(self, config: PushConfig) -> None:
        """Raise `InvalidParams` if nothing would ever be posted there."""
        self._open().check(config)

    def add(self, push: Push) -> None:
        """Begin to deliver."""
        self._open().add(push)

    def drop(self, push: Push) -> None:
        """Deliver no more."""
        if self._sender is not None:
            self._sender.drop(push)

    async def claim(self) -> None:
        """Take over the receivers of workers that are gone."""
        while pushes := await self._store.claim_pushes(_CLAIM_AT_ONCE):
            for push in pushes:
                self.add(push)

    async def stop(self) -> None:
        """End; posts on their way have a moment to be answered."""
        if self._sender is not None:
            await self._sender.stop(_GRACE)
        if self._egress is not None:
            await self._egress.close()
        self._sender = self._egress = None

    def _open(self) -> "Sender":
        if self._sender is None:
            from dragoman.push.sender import Sender
            from dragoman.push.signature import secrets_of
            from dragoman.security.egress import Egress

            settings = self._settings
            self._egress = Egress(allow=allowed(settings), allow_private=settings.allow_private)
            self._sender = Sender(
                self._store,
                self._egress,
                follow=self._follow,
                read=self._read,
                dialects={"1.0": V1_0, "0.3": V0_3, "0.2": V0_2},
                secrets=secrets_of(settings.push_secret, self._store.secret),
                tokens=self._tokens,
                slots=settings.push_slots,
                timeout=settings.push_timeout,
            )
        return self._sender

    async def _follow(self, push: Push) -> AsyncGenerator[Sequence[Recorded]]:
        engine = self._engine_of(push.scope.agent)
        if engine is None:
            # Another process may serve that agent; its log is in the store all the same.
            engine = self._engine_of("")
        assert engine is not None, "an app has at least one agent"
        async for batch in engine.follow_push(push):
            yield batch

    async def _read(self, push: Push, seq: int) -> Task:
        engine = self._engine_of("")
        assert engine is not None, "an app has at least one agent"
        return await engine.task_as_of(push, seq)


def allowed(settings: Settings) -> list[str]:
    """Return what may be dialled although it is not public."""
    return [entry.strip() for entry in settings.allow.split(",") if entry.strip()]


def tokens_of(settings: Settings, secret: bytes) -> "Tokens | None":
    """Return who makes the tokens of posts, if they carry any."""
    if not settings.push_tokens:
        return None
    try:
        from dragoman.push.token import Tokens, key_from
    except ImportError:
        raise ConfigError("push_tokens needs the extra: pip install 'dragoman[jwt]'") from None
    if not settings.public_url:
        raise ConfigError("push_tokens needs public_url: it is who the tokens are from")
    return Tokens(settings.public_url, [key_from(secret)])


def check(settings: Settings) -> None:
    """Raise `ConfigError` for a mistake in the settings: it must end the start, not the request
    of whoever names the first receiver."""
    if not settings.push:
        return
    tokens_of(settings, b"")
    if settings.push_secret:
        from dragoman.push.signature import secrets_of

        secrets_of(settings.push_secret, b"")
    if settings.allow:
        from dragoman.security.targets import Policy

        Policy(allow=allowed(settings), allow_private=False, ports=())
