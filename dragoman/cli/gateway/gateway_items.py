"""What commands about one kind of thing at a gateway share: its paths, and how it is shown."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from dragoman.cli.gateway.gateway_api import LIMIT, GatewayApi, asks_gateway
from dragoman.cli.grammar import Command, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import PAGE_TOKEN, show_page
from dragoman.cli.terminal.table import Column

Record = Callable[[Invocation, dict[str, Any]], None]


class GatewayItems:
    """One kind, such as triggers; `record` writes one as text."""

    def __init__(self, kind: str, record: Record) -> None:
        self._kind = kind
        self._record = record

    def path(self, id: str, *steps: str) -> str:
        """Return the path of one, or below it."""
        return "/".join([self._kind, *(quote(step, safe="") for step in (id, *steps))])

    def show(self, run: Invocation, item: dict[str, Any], record: Record | None = None) -> None:
        """Write one, or what belongs to it and has a record of its own."""
        if run.out.is_json:
            run.out.json(item)
        else:
            (record or self._record)(run, item)

    def listing(self, about: str, columns: Sequence[Column], empty: str) -> Command:
        """Return the command that lists them; `empty` is said of a table without a row."""

        def list_(run: Invocation, api: GatewayApi, limit: int, page_token: str) -> None:
            show_page(
                run,
                *api.page(self._kind, self._kind, page_token, {"limit": limit}),
                lambda item: self._record(run, item),
                columns=columns,
                empty=empty,
            )

        list_.__doc__ = about
        return command("list")(LIMIT(PAGE_TOKEN(asks_gateway()(list_))))
