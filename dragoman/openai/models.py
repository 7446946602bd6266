"""Agents and their skills as models: `weather` is an agent, which chooses the skill itself;
`weather/forecast` is one of its skills."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from dragoman.http.request import HttpRequest
from dragoman.model.identity import Caller
from dragoman.openai.errors import model_not_found
from dragoman.server.mounts import AgentMount
from dragoman.server.site import Site

# What a list has at most; what it leaves out can be called all the same.
_MAX_LISTED = 2000


class ChatModel(NamedTuple):
    """An agent, or one skill of it."""

    mount: AgentMount
    skill: str = ""

    @property
    def id(self) -> str:
        """What requests call it."""
        return f"{self.mount.name}/{self.skill}" if self.skill else self.mount.name


class Models:
    """The models that there are for a caller: at the address of an agent, that agent's."""

    def __init__(self, site: Site, created_at: int) -> None:
        self._site = site
        self._created_at = created_at

    def listed(self, request: HttpRequest) -> list[dict[str, Any]]:
        """Return the models that the caller may see."""
        own = self._own(request)
        mounts = [own] if own is not None else self._site.agents_for(request.caller)
        found: list[dict[str, Any]] = []
        for mount in mounts:
            for model in _models(mount, request.caller):
                if len(found) == _MAX_LISTED:
                    return found
                found.append(self.document(model))
        return found

    def find(self, request: HttpRequest, id: str) -> ChatModel:
        """Return a model by its id; raises `ChatError`, the same for one that the caller may not
        see."""
        name, _, skill = id.partition("/")
        own = self._own(request)
        if own is None:
            mount = self._site.agent_for(request.caller, name)
        else:
            mount = own if own.name == name else None
        if mount is None:
            raise model_not_found(id)
        for model in _models(mount, request.caller):
            if model.skill == skill:
                return model
        raise model_not_found(id)

    def own_mounts(self, request: HttpRequest) -> list[AgentMount]:
        """Return the agents whose tasks are in this process's store and may be what a request is
        about: those that are registered with a gateway have theirs under the gateway."""
        own = self._own(request)
        if own is not None:
            return [own]
        mounts = self._site.agents_for(request.caller)
        return [one for one in mounts if self._site.mounts.get(one.name) is one]

    def document(self, model: ChatModel) -> dict[str, Any]:
        """Return a model as it is listed."""
        agent = model.mount.agent
        about = agent.skills[model.skill].card.description if model.skill else agent.description
        return {
            "id": model.id,
            "object": "model",
            "created": self._created_at,
            "owned_by": agent.provider.organization if agent.provider else "dragoman",
            "description": about,
        }

    def _own(self, request: HttpRequest) -> AgentMount | None:
        """Return the agent at whose address a request came; None: at the root, for all."""
        root: str = request.scope.get("root_path", "")
        if request.scope["path"].startswith(f"{root}/v1/"):
            return None
        mount = request.mount
        return mount if isinstance(mount, AgentMount) else None


def _models(mount: AgentMount, caller: Caller) -> Iterator[ChatModel]:
    """Yield an agent, and those of its skills that are for a caller."""
    yield ChatModel(mount)
    for id, skill in mount.agent.skills.items():
        if skill.scopes <= caller.scopes:
            yield ChatModel(mount, id)
