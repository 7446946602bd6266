"""The cards of a corvid instance and of its agents; their skills are the registered tools.

The permissions of an agent select its tools. The address is that of `BIND_HOST` and `PORT` unless
one is given. Streaming is not offered.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dragoman import __version__
from dragoman.agents.tool_names import title_of
from dragoman.compat.corvid.records import member

Json = dict[str, Any]

# Tags by words of a tool's name, in this order.
_TAGS: dict[str, Sequence[str]] = {
    "github": ("github",),
    "pr": ("pull-requests",),
    "prs": ("pull-requests",),
    "review": ("review",),
    "diff": ("review",),
    "issue": ("issues",),
    "issues": ("issues",),
    "star": ("social",),
    "unstar": ("social",),
    "follow": ("social",),
    "fork": ("repository",),
    "info": ("repository",),
    "search": ("search",),
    "web": ("web",),
    "research": ("search", "research"),
    "memory": ("memory",),
    "message": ("messaging", "communication"),
    "comment": ("communication",),
    "agent": ("agents",),
    "agents": ("agents",),
    "discover": ("discovery", "a2a"),
    "credits": ("credits", "billing"),
    "credit": ("credits", "billing"),
    "schedule": ("automation", "scheduling"),
    "work": ("development", "automation"),
    "session": ("session",),
    "timeout": ("session", "management"),
}
_tools: dict[str, Json] = {}


def register_tool(
    name: str, description: str = "", *, tags: Sequence[str] = (), is_default: bool = True
) -> None:
    """Register a tool: a skill of the instance and, if it is a default one, of agents without
    permissions."""
    _tools[name] = {
        "id": name,
        "name": human_readable_name(name),
        "description": description or f"Tool: {name}",
        "tags": list(tags) or _tags(name),
        "inputModes": ["application/json"],
        "outputModes": ["application/json", "text/plain"],
        "isDefault": is_default,
    }


def clear_tools() -> None:
    """Drop all tools."""
    _tools.clear()


def human_readable_name(tool: str) -> str:
    """Return a tool's title: `corvid_github_list_prs` is GitHub List PRs."""
    return title_of(tool)


def _tags(tool: str) -> list[str]:
    words = tool.split("_")
    found = [tag for word, tags in _TAGS.items() if word in words for tag in tags]
    return list(dict.fromkeys(found)) or ["general"]


def build_agent_card(base_url: str | None = None) -> Json:
    """Return the card of the instance, with every registered tool as a skill."""
    url = base_url or _own_url()
    card = _card("CorvidAgent", "An agent that others can give tasks", url, _skills(_tools))
    card["supportedProtocols"] = [
        {
            "protocol": "A2A",
            "description": "Agent2Agent",
            "endpoint": f"{url}/.well-known/agent-card.json",
        },
        {"protocol": "MCP", "description": "Model Context Protocol, for tools"},
        {"protocol": "HTTP", "description": "REST", "endpoint": f"{url}/api"},
    ]
    return card


def build_agent_card_for_agent(agent: Any, base_url: str | None = None, db: Any = None) -> Json:
    """Return the card of one agent, with its permitted tools, else the default ones. `db` adds its
    persona and skill bundles (`get_persona`, `get_agent_bundles`)."""
    url = base_url or _own_url()
    own = f"{url}/api/agents/{member(agent, 'id')}"
    permitted = member(agent, "mcp_tool_permissions")
    names = (
        [n for n, tool in _tools.items() if tool["isDefault"]] if permitted is None else permitted
    )
    description = str(member(agent, "description") or "An agent of this instance")
    if db is not None:
        description += _persona(db, member(agent, "id"))
    card = _card(str(member(agent, "name")), description, own, _skills(names))
    wallet = member(agent, "wallet_address")
    chain = {"endpoint": f"algo://{wallet}"} if wallet else {}
    card["supportedProtocols"] = [
        {"protocol": "AlgoChat", "description": "Messages on the Algorand chain"} | chain,
        {"protocol": "HTTP", "description": "REST", "endpoint": f"{own}/invoke"},
    ]
    return card


def _persona(db: Any, agent_id: Any) -> str:
    text = ""
    persona = db.get_persona(agent_id)
    archetype = member(persona, "archetype") if persona is not None else None
    if archetype and archetype != "custom":
        text += f" | Archetype: {archetype}"
    if bundles := [str(member(bundle, "name")) for bundle in db.get_agent_bundles(agent_id) or ()]:
        text += f" | Skills: {', '.join(bundles)}"
    return text


def _skills(names: Iterable[str]) -> list[Json]:
    return [
        {member: value for member, value in _tools[name].items() if member != "isDefault"}
        for name in names
        if name in _tools
    ]


def _card(name: str, description: str, url: str, skills: list[Json]) -> Json:
    card: Json = {
        "name": name,
        "description": description,
        "url": url,
        "version": __version__,
        "capabilities": {
            "streaming": False,
            "pushNotifications": False,
            "stateTransitionHistory": False,
        },
        "authentication": {"schemes": ["Bearer"]},
        "defaultInputModes": ["text/plain", "application/json"],
        "defaultOutputModes": ["text/plain", "application/json"],
        "skills": skills,
    }
    return card | _provider(os.environ)


def _provider(environ: Mapping[str, str]) -> Json:
    """Return the provider of the instance, from the environment."""
    found: Json = {}
    if organization := environ.get("A2A_PROVIDER_ORG"):
        url = environ.get("A2A_PROVIDER_URL", "")
        found["provider"] = {"organization": organization, "url": url}
    if documents := environ.get("A2A_DOCS_URL"):
        found["documentationUrl"] = documents
    return found


def _own_url() -> str:
    host = os.environ.get("BIND_HOST") or "127.0.0.1"
    port = os.environ.get("PORT", "")
    return f"http://{host}:{port if port.isascii() and port.isdigit() else '3000'}"
