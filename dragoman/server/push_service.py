"""Push notifications: joins the engines' logs, the guarded client and the sender."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.config import Settings, refusal
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.engine.engine import Engine
from dragoman.engine.reading import read_task
from dragoman.engine.store_clock import StoreClock
from dragoman.errors import ConfigError
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded
from dragoman.model.task import Task
from dragoman.stores.interface import Push, Store

if TYPE_CHECKING:
    from dragoman.egress.egress import Egress
    from dragoman.push.sender import Sender
    from dragoman.push.token import Tokens

_GRACE = 2.0
_CLAIM_AT_ONCE = 200
DIALECTS: dict[str, Dialect] = {"1.0": V1_0, "0.3": V0_3, "0.2": V0_2}


class PushService:
    """Delivers for every agent of an app. The client is loaded with the first receiver: most
    processes never have one, and it takes as long to load as all the rest."""

    def __init__(self, store: Store, settings: Settings, engines: Mapping[str, Engine]) -> None:
        self._store = store
        self._settings = settings
        self._engines = engines
        self._sender: Sender | None = None
        self._egress: Egress | None = None
        check(settings)
        # Reading the secret takes a while, so only where it is needed.
        self._tokens = tokens_of(settings, store.secret if settings.push.tokens else b"")

    def keys(self) -> dict[str, Any] | None:
        """Return the public keys of our tokens, if posts carry any."""
        return None if self._tokens is None else self._tokens.document()

    def check(self, config: PushConfig) -> None:
        """Raise `InvalidParams` for a receiver to which nothing could be posted."""
        self._open().check(config)

    def add(self, push: Push) -> None:
        """Begin to deliver to a receiver."""
        self._open().add(push)

    def hurry(self, push: Push) -> bool:
        """Try a receiver at once; tell whether this process delivers to it."""
        return self._sender is not None and self._sender.hurry(push.number)

    def drop(self, push: Push) -> None:
        """Deliver to a receiver no more."""
        if self._sender is not None:
            self._sender.drop(push)

    async def claim(self) -> None:
        """Take over the receivers of workers that are gone."""
        while pushes := await self._store.claim_pushes(_CLAIM_AT_ONCE):
            await self._store.prepare()
            for push in pushes:
                self.add(push)

    async def replay(self, push: Push, seq: int) -> str:
        """Post an event to a receiver once more, with its first id, so that the receiver knows a
        repetition; return what was wrong. A dead letter that is taken is gone."""
        from dragoman.egress.errors import EgressError
        from dragoman.push.request import headers, webhook_id
        from dragoman.push.signature import secrets_of

        # It was read without its secrets.
        known = {one.number: one for one in await self._store.pushes(push.task)}
        if (one := known.get(push.number)) is None:
            return "its receiver is gone"
        events = await self._store.read(one.task, after=seq - 1, limit=1)
        reading = await read_task(self._store, one.task, upto=seq) if events else None
        if reading is None:
            return "its task is gone"
        await self._store.prepare()
        self._open()
        assert self._egress is not None, "it is opened with the sender"
        dialect = DIALECTS[one.config.version]
        body = dialect.encode_push(events[0], reading.task)
        sent = headers(
            one.config,
            body,
            id=webhook_id(one.scope, one.config, seq),
            seq=seq,
            content_type=dialect.push_content_type,
            now=StoreClock(self._store).now(),
            secrets=secrets_of(self._settings.push.secrets, self._store.secret),
            tokens=self._tokens,
        )
        timeout = self._settings.push.timeout
        try:
            answer = await self._egress.post(one.config.url, body, sent, timeout=timeout)
        except EgressError as error:
            return error.reason
        if not 200 <= answer.status < 300:
            return f"answered {answer.status}"
        await self._store.drop_letter(one.number, seq)
        return ""

    async def stop(self) -> None:
        """End; posts on their way have a moment to be answered."""
        if self._sender is not None:
            await self._sender.stop(_GRACE)
        if self._egress is not None:
            await self._egress.close()
        self._sender = self._egress = None

    def _open(self) -> "Sender":
        if self._sender is None:
            from dragoman.egress.egress import Egress
            from dragoman.push.sender import Sender
            from dragoman.push.signature import secrets_of

            settings = self._settings
            self._egress = Egress(
                allow=allowed(settings), allow_private=settings.egress.allow_private
            )
            self._sender = Sender(
                self._store,
                self._egress,
                follow=self._follow,
                read=self._read,
                dialects=DIALECTS,
                secrets=secrets_of(settings.push.secrets, self._store.secret),
                tokens=self._tokens,
                clock=StoreClock(self._store),
                slots=settings.push.slots,
                timeout=settings.push.timeout,
            )
        return self._sender

    async def _follow(self, push: Push) -> AsyncGenerator[Sequence[Recorded]]:
        # Another process may serve that agent; any engine reads its log in the store.
        engine = self._engines.get(push.scope.agent) or self._any_engine()
        async for batch in engine.follow_push(push):
            yield batch

    async def _read(self, push: Push, seq: int) -> Task:
        return await self._any_engine().task_as_of(push, seq)

    def _any_engine(self) -> Engine:
        return next(iter(self._engines.values()))


def allowed(settings: Settings) -> list[str]:
    """Return the addresses that may be dialled although they are not public."""
    return settings.egress.allow


def tokens_of(settings: Settings, secret: bytes) -> "Tokens | None":
    """Return what makes the tokens of posts, if they carry any."""
    if not settings.push.tokens:
        return None
    try:
        from dragoman.push.token import Tokens, key_from
    except ImportError:
        raise ConfigError(
            "push_tokens needs the extra: pip install 'dragoman[jwt]'",
            remedy="pip install 'dragoman[jwt]'",
        ) from None
    if not settings.cards.public_url:
        raise refusal(
            "push_tokens",
            True,
            "needs public_url, the issuer of the tokens",
            remedy="--public-url <url>",
        )
    return Tokens(settings.cards.public_url, [key_from(secret)])


def check(settings: Settings) -> None:
    """Raise `ConfigError` for a mistake in the settings: it must end the start, not the request
    that names the first receiver."""
    if not settings.push.enabled:
        return
    tokens_of(settings, b"")
