"""Tokens of pages: each belongs to one list of one viewer."""

import msgspec

from dragoman.engine.seal import load_cipher, seal_place, unseal_place
from dragoman.model.record import encode
from dragoman.server.operator.table import OperatorAsk


class Pages:
    """Tokens of one list of one viewer."""

    def __init__(self, ask: OperatorAsk, name: str) -> None:
        filters = msgspec.to_builtins(ask.query)
        filters = {name: filters[name] for name in filters if name not in ("pageToken", "limit")}
        self._store = ask.store
        self._token: str = ask.query.page_token
        self._bound = encode([name, ask.viewer.name, sorted(filters.items())])

    async def start(self) -> tuple[int, int] | None:
        """Return the place that the token has; None: there is no token."""
        await self._store.prepare()
        await load_cipher()
        if not self._token:
            return None
        return unseal_place(self._token, self._store.secret, self._bound)

    def token(self, place: tuple[int, int]) -> str:
        """Return the token of a place."""
        return seal_place(place, self._store.secret, self._bound)
