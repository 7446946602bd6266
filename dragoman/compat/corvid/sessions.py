"""Sessions of a process manager as tasks of the engine: a task is stored, outlives the process, and
is served in every version of the protocol besides corvid's two requests.

The session of a task, and that it was started, are recorded: a worker that takes the task over
subscribes to the session again and starts no second one.
"""

import asyncio
import inspect
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn
from dragoman.compat.corvid.budget import load_invocation_guard_config
from dragoman.compat.corvid.cards import build_agent_card_for_agent
from dragoman.compat.corvid.records import A2ATaskDeps, NotFoundError, member, text_of
from dragoman.config import DialectSettings, Settings, StoreSettings
from dragoman.engine.running.worker import Plan
from dragoman.errors import NoAgentAvailable, TaskFailed
from dragoman.http.documents import document
from dragoman.http.request import HttpRequest
from dragoman.http.routes import BY_REQUEST, Access
from dragoman.model.identity import ANONYMOUS, Caller, ContextId
from dragoman.model.operations import SendMessage
from dragoman.server.app import App
from dragoman.server.endpoints.corvid_endpoints import CorvidEndpoints
from dragoman.server.endpoints.endpoints import Endpoints
from dragoman.server.site import AppPart, Site

# Says whether a text is a prompt injection.
Scan = Callable[[str], bool | Awaitable[bool]]
_AGENTS_PATH, _CARD_NAME = "/api/agents/", "/agent-card"
_INJECTIONS = re.compile(
    r"\b(ignore|disregard|forget)\b.{0,30}\b(previous|prior|above|earlier|your)\b.{0,30}"
    r"\b(instructions?|rules|prompts?)\b"
    r"|\b(reveal|print|show)\b.{0,20}\bsystem prompt\b",
    re.IGNORECASE | re.DOTALL,
)
# Characters of a text that are scanned.
_MOST_SCANNED = 100_000
# Sessions that wait for their messages.
_MOST_PREPARED = 1000


def looks_injected(text: str) -> bool:
    """Tell whether a text has typical words of a prompt injection. It finds obvious ones only:
    `session_app` takes another function."""
    return _INJECTIONS.search(text[:_MOST_SCANNED]) is not None


class SessionAgent(Agent):
    """Works on each message in a session of a process manager."""

    def __init__(
        self,
        deps: A2ATaskDeps,
        name: str = "CorvidAgent",
        description: str = "An agent that others can give tasks",
        **more: Any,
    ) -> None:
        super().__init__(name, description, **more)
        self._deps = deps
        # Made before their message is processed, by the message's id.
        self._prepared: OrderedDict[str, Any] = OrderedDict()

        async def task(text: str, turn: Turn) -> None:
            await self._work(text, turn)

        self.skill(description=description, tags=["general"])(task)

    def plan(
        self,
        operation: SendMessage,
        began: SendMessage | None = None,
        *,
        is_answer: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> Plan:
        """Return the plan for a message; raises `NoAgentAvailable` if no agent has a project."""
        if began is None:
            try:
                self._deps.agent()
            except NotFoundError as error:
                raise NoAgentAvailable(str(error)) from None
        # A named skill is one of the session's agent, not of this one.
        return super().plan(
            _without_skill(operation), began and _without_skill(began), is_answer=is_answer
        )

    def admit(
        self, caller: Caller, operation: SendMessage, began: SendMessage | None = None
    ) -> None:
        """Every authenticated caller may send tasks."""

    async def in_session(self, operation: SendMessage) -> SendMessage:
        """Return a message whose context is the session that was made for it: the caller learns the
        session's id at once."""
        message = operation.message
        try:
            session = await asyncio.to_thread(self._session, message.text)
        except NotFoundError as error:
            raise NoAgentAvailable(str(error)) from None
        self._prepared[message.message_id] = session
        if len(self._prepared) > _MOST_PREPARED:
            # The messages of the oldest were refused.
            self._prepared.popitem(last=False)
        context_id = ContextId(str(member(session, "id")))
        message = msgspec.structs.replace(message, context_id=context_id)
        return msgspec.structs.replace(operation, message=message)

    def _session(self, text: str) -> Any:
        return self._deps.session(self._deps.agent(), text)

    async def _work(self, text: str, turn: Turn) -> None:
        deps, made = self._deps, dict[str, Any]()

        def create() -> str:
            made["session"] = self._prepared.pop(turn.message.message_id, None) or self._session(
                text
            )
            return str(member(made["session"], "id"))

        session_id: str = await turn.step("session", create)
        events: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def on_event(session: str, event: Mapping[str, Any]) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        manager = deps.process_manager
        # Before it starts: its events may come at once.
        manager.subscribe(session_id, on_event)

        def start() -> None:
            session = made.get("session", {"id": session_id, "initialPrompt": text})
            manager.start_process(session, text, {"schedulerMode": True})

        try:
            await turn.step("start", start)
            await _relay(events, turn)
        finally:
            if (unsubscribe := getattr(manager, "unsubscribe", None)) is not None:
                unsubscribe(session_id, on_event)


async def _relay(events: "asyncio.Queue[Mapping[str, Any]]", turn: Turn) -> None:
    """Relay the messages of a session, until it ends."""
    while True:
        event = await events.get()
        match event.get("type"):
            case "assistant":
                if text := text_of(event):
                    await turn.say(text)
            case "session_exited" | "session_stopped":
                return
            case "error":
                raise TaskFailed("Task failed")
            case _:
                # Other events of sessions do not concern tasks.
                pass


def _without_skill(operation: SendMessage) -> SendMessage:
    metadata = {name: value for name, value in operation.metadata.items() if name != "skill"}
    return msgspec.structs.replace(operation, metadata=metadata)


def session_app(
    deps: A2ATaskDeps,
    *,
    settings: Settings | None = None,
    scan: Scan | None = looks_injected,
) -> App:
    """Return an ASGI app that serves sessions: corvid's requests, cards of single agents, and
    every version of the protocol. `scan` checks the texts of corvid's requests. Without settings
    tasks are in memory, and corvid's environment variable limits the tasks of a source."""
    if settings is None:
        most = load_invocation_guard_config().inbound_rate_limit_per_min
        settings = Settings(
            stores=StoreSettings(location="memory:"),
            dialects=DialectSettings(corvid_rate=f"{most}/60s" if most else "off"),
        )
    agent = SessionAgent(deps)
    # The part serves corvid's requests, because it scans them first.
    chosen = msgspec.structs.replace(
        settings, dialects=msgspec.structs.replace(settings.dialects, houses=["none"])
    )
    return App(agent, settings=chosen, parts=[_SessionPart(deps, agent, scan)])


class _SessionPart(AppPart):
    """Corvid's two requests, whose texts are scanned first, and the cards of single agents."""

    def __init__(self, deps: A2ATaskDeps, agent: SessionAgent, scan: Scan | None) -> None:
        self._deps = deps
        self._agent = agent
        self._scan = scan

    def add_routes(self, site: Site) -> None:
        """Serve both requests and the cards."""
        self._site, settings = site, site.settings
        endpoints = Endpoints(settings, site.discovery, site.streams, site.audit)
        corvid = CorvidEndpoints(
            settings, endpoints.responder, screen=self._screen, prepare=self._agent.in_session
        )
        for path, answer in corvid.answers(endpoints.answer_rest).items():
            site.routes.add(path, answer, Access.CALLER, BY_REQUEST)
        site.routes.add(f"{_AGENTS_PATH}*", self._card, Access.PUBLIC)

    async def _card(self, request: HttpRequest) -> None:
        """Serve the card of one of the agents."""
        if request.verb != "GET":
            await request.refuse_verb("GET")
            return
        wanted = request.path.removeprefix(_AGENTS_PATH)
        base, db = self._site.discovery.base(request), self._deps.db
        agents = self._deps.list_agents(db) if self._deps.list_agents else db.list_agents()
        for agent in agents:
            if wanted == f"{member(agent, 'id')}{_CARD_NAME}":
                enriching = db if hasattr(db, "get_persona") else None
                card = build_agent_card_for_agent(agent, base, enriching)
                cached = (b"cache-control", b"public, max-age=300")
                await document(request, card, cached, (b"access-control-allow-origin", b"*"))
                return
        await document(request, {"error": "Agent not found"}, status=404)

    async def _screen(self, request: HttpRequest, body: Any) -> bool:
        """Refuse a text that looks like an injection."""
        if not await self._is_injected(body):
            return False
        self._site.audit.record(
            "content.blocked",
            outcome="denied",
            who=request.caller.principal.text,
            object=request.mount.name,
            reason="injection",
            address=request.address,
        )
        refusal = {"error": "Content policy violation", "code": "INJECTION_BLOCKED"}
        await document(request, refusal, status=403)
        return True

    async def _is_injected(self, body: Any) -> bool:
        fields = cast("dict[str, Any]", body) if type(body) is dict else {}
        inner: Any = fields.get("params")
        text: Any = (cast("dict[str, Any]", inner) if type(inner) is dict else fields).get(
            "message"
        )
        if not isinstance(text, str) or self._scan is None:
            return False
        found = self._scan(text)
        return await found if inspect.isawaitable(found) else found
