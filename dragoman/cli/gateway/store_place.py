"""Where a command looks: into the store that the settings name, or with `--gateway` into that of a
gateway elsewhere, by its operator API. What is shown of both is the same."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dragoman.cli.gateway.gateway_api import ELSEWHERE_OPTIONS, GatewayApi, elsewhere
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import STORE_OPTION, kept_by

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    import msgspec

    from dragoman.stores.interface.inspection import HealthInspection, TaskInspection
    from dragoman.stores.tools import ToolAccounting, Wait

F = TypeVar("F", bound=Callable[..., Any])


class RemoteStore:
    """The store of a gateway elsewhere."""

    def __init__(self, api: GatewayApi) -> None:
        self.api = api

    def read(self, name: str, arguments: "msgspec.Raw") -> "msgspec.Raw":
        """Return what a read of `stores.remote` returns there; raises `Failure`."""
        import msgspec

        asked = {"read": name, "arguments": arguments}
        answer = self.api.operate("POST", "inspection", asked)
        return msgspec.json.decode(answer, type=dict[str, msgspec.Raw])["value"]


# What `--store` names, or the settings, or a gateway.
StorePlace = str | RemoteStore | None


def looks_elsewhere(function: F) -> F:
    """Give a command that has `--store` a `--gateway` too; its function gets either as `store`."""

    @functools.wraps(function)
    def call(run: Invocation, gateway: str, admin_token: str, **given: Any) -> Any:
        if gateway:
            given["store"] = RemoteStore(elsewhere(run, gateway, admin_token))
        return function(run, **given)

    return STORE_OPTION(ELSEWHERE_OPTIONS(cast(F, call)))


def tasks_in(
    run: Invocation, store: StorePlace
) -> "AbstractContextManager[tuple[TaskInspection, Wait]]":
    """Give what reads tasks, without becoming a worker of the store."""
    if isinstance(store, RemoteStore):
        from dragoman.stores.at_once import at_once
        from dragoman.stores.remote import RemoteTasks

        return nullcontext((cast("TaskInspection", RemoteTasks(store.read)), at_once))
    from dragoman.stores.tools import reading_tasks

    return reading_tasks(kept_by(run, store))


def health_of(
    run: Invocation, store: StorePlace
) -> "AbstractContextManager[tuple[HealthInspection, Wait]]":
    """Give what reads receivers and letters."""
    if isinstance(store, RemoteStore):
        from dragoman.stores.at_once import at_once
        from dragoman.stores.remote import RemotePart

        return nullcontext((cast("HealthInspection", RemotePart("health", store.read)), at_once))
    from dragoman.stores.tools import inspecting

    return inspecting(kept_by(run, store))


def accounting_in(
    run: Invocation, store: StorePlace
) -> "AbstractContextManager[tuple[ToolAccounting, Wait]]":
    """Give what reads ledger and trust: of a file as of one moment."""
    if isinstance(store, RemoteStore):
        from dragoman.stores.at_once import at_once
        from dragoman.stores.remote import RemoteAccounting

        return nullcontext((cast("ToolAccounting", RemoteAccounting(store.read)), at_once))
    from dragoman.stores.tools import accounting_of

    return accounting_of(kept_by(run, store))
