"""Who looks, and what of the store exists for them."""

from typing import Any, Literal

import msgspec

from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model.identity import ADMIN, Caller, Principal, TaskId
from dragoman.stores.interface import Store, Survey, TaskRow

Role = Literal["operator", "admin", "caller"]


class Viewer(msgspec.Struct, frozen=True):
    """A caller, by what it may see."""

    caller: Caller
    role: Role

    @classmethod
    def of(cls, caller: Caller, *, is_local: bool) -> "Viewer":
        """Return a caller as a viewer. `is_local`: only this machine reaches the server."""
        if caller.operates(is_local=is_local):
            return cls(caller, "operator")
        is_admin = ADMIN in caller.scopes and caller.tenant is not None
        return cls(caller, "admin" if is_admin else "caller")

    @property
    def is_operator(self) -> bool:
        """Whether it may see the whole server."""
        return self.role == "operator"

    @property
    def principal(self) -> Principal | None:
        """The only owner whose tasks it may see; None: it may see those of several."""
        return self.caller.principal if self.role == "caller" else None

    @property
    def name(self) -> list[str]:
        """What tells its lists from those of others."""
        who = self.caller.principal if self.role == "caller" else Principal()
        return [self.role, self.caller.tenant or "", who.tenant, who.owner]

    def survey(self, *, limit: int, tenant: str | None = None, **asked: Any) -> Survey | None:
        """Return what asks a store for tasks that it may see; None: there can be none."""
        if self.role == "admin":
            if tenant not in (None, self.caller.tenant):
                return None
            tenant = self.caller.tenant
        return Survey(limit=limit, tenant=tenant, principal=self.principal, **asked)

    async def tasks(self, store: Store, **asked: Any) -> list[TaskRow]:
        """Return tasks that it may see, latest status first."""
        survey = self.survey(**asked)
        return [] if survey is None else await store.survey(survey)

    async def task(self, store: Store, task_id: str, **asked: Any) -> TaskRow:
        """Return one task; raises `TaskNotFound` also for one that it may not see, and
        `InvalidParams` where several have the id."""
        found = await self.tasks(store, limit=2, task_id=TaskId(task_id), **asked)
        if len(found) > 1:
            raise InvalidParams("several tasks have this id", field="agent, tenant or owner")
        if not found:
            raise TaskNotFound(taskId=task_id)
        return found[0]
