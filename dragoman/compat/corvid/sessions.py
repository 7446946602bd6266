"""Sessions of a process manager as tasks of our engine: what was sent is kept, a task outlives the
process, and every version of the protocol reads it besides corvid's two requests.

Which session belongs to a task, and that it was started, are recorded: whoever takes the task over
listens to the session again and starts no second one.
"""

import asyncio
import inspect
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from dragoman.compat.corvid.budget import load_invocation_guard_config
from dragoman.compat.corvid.cards import build_agent_card_for_agent
from dragoman.compat.corvid.records import A2ATaskDeps, NotFoundError, member, text_of
from dragoman.config import Settings
from dragoman.engine.worker import Plan
from dragoman.errors import A2AError, NoAgentAvailable, TaskFailed
from dragoman.model.identity import ANONYMOUS, Caller, ContextId
from dragoman.model.operations import SendMessage
from dragoman.server.agent import Agent
from dragoman.server.app import App
from dragoman.server.discovery import document
from dragoman.server.endpoints import Endpoints
from dragoman.server.house import Houses
from dragoman.server.house_corvid import CorvidEndpoints
from dragoman.server.request import Request
from dragoman.server.routes import Access, Routes
from dragoman.server.turn import Turn

# Says whether a text is meant to make an agent forget whose it is.
Scan = Callable[[str], bool | Awaitable[bool]]
_AGENTS_PATH, _CARD_NAME = "/api/agents/", "/agent-card"
_INJECTIONS = re.compile(
    r"\b(ignore|disregard|forget)\b.{0,30}\b(previous|prior|above|earlier|your)\b.{0,30}"
    r"\b(instructions?|rules|prompts?)\b"
    r"|\b(reveal|print|show)\b.{0,20}\bsystem prompt\b",
    re.IGNORECASE | re.DOTALL,
)
# What is looked through of a text.
_MOST_SCANNED = 100_000
# Sessions that are kept for messages on their way.
_MOST_MADE = 1000


def looks_injected(text: str) -> bool:
    """Tell whether a text has the words that such attempts usually have. It finds the plain ones:
    a judge of one's own is handed to `session_app`."""
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
        # Made for messages that are on their way, by their ids.
        self._made: OrderedDict[str, Any] = OrderedDict()

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
        """Return what will be done; raises `NoAgentAvailable` where no agent has a project."""
        if began is None:
            try:
                self._deps.agent()
            except NotFoundError as error:
                raise NoAgentAvailable(str(error)) from None
        # A skill is a wish that the session's agent may know of, and none of ours.
        return super().plan(_unnamed(operation), began and _unnamed(began), is_answer=is_answer)

    def admit(
        self, caller: Caller, operation: SendMessage, began: SendMessage | None = None
    ) -> None:
        """Let everybody in who may call at all."""

    async def in_session(self, operation: SendMessage) -> SendMessage:
        """Return a message whose context is the session that was made for it: whoever sends it is
        told the session's id at once."""
        message = operation.message
        try:
            session = await asyncio.to_thread(self._session, message.text)
        except NotFoundError as error:
            raise NoAgentAvailable(str(error)) from None
        self._made[message.message_id] = session
        if len(self._made) > _MOST_MADE:
            # Their messages were refused.
            self._made.popitem(last=False)
        context_id = ContextId(str(member(session, "id")))
        message = msgspec.structs.replace(message, context_id=context_id)
        return msgspec.structs.replace(operation, message=message)

    def _session(self, text: str) -> Any:
        return self._deps.session(self._deps.agent(), text)

    async def _work(self, text: str, turn: Turn) -> None:
        deps, made = self._deps, dict[str, Any]()

        def create() -> str:
            made["session"] = self._made.pop(turn.message.message_id, None) or self._session(text)
            return str(member(made["session"], "id"))

        session_id: str = await turn.step("session", create)
        events: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def hear(session: str, event: Mapping[str, Any]) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        manager = deps.process_manager
        # Before it starts: it may say everything at once.
        manager.subscribe(session_id, hear)

        def start() -> None:
            session = made.get("session", {"id": session_id, "initialPrompt": text})
            manager.start_process(session, text, {"schedulerMode": True})

        try:
            await turn.step("start", start)
            await _heard(events, turn)
        finally:
            if (leave := getattr(manager, "unsubscribe", None)) is not None:
                leave(session_id, hear)


async def _heard(events: "asyncio.Queue[Mapping[str, Any]]", turn: Turn) -> None:
    """Say what a session says, until it ends."""
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
                # Sessions tell more than tasks are made of.
                pass


def _unnamed(operation: SendMessage) -> SendMessage:
    metadata = {name: value for name, value in operation.metadata.items() if name != "skill"}
    return msgspec.structs.replace(operation, metadata=metadata)


def session_app(
    deps: A2ATaskDeps,
    *,
    settings: Settings | None = None,
    scan: Scan | None = looks_injected,
    agent: SessionAgent | None = None,
) -> App:
    """Return an ASGI app that serves sessions: corvid's requests, cards of single agents, and
    every version of the protocol. `scan` looks at what comes by corvid's requests first. Without
    settings tasks are in memory, and a source may send as many as corvid's environment says, if it
    does."""
    if settings is None:
        most = load_invocation_guard_config().inbound_rate_limit_per_min
        settings = Settings(store="memory:", corvid_rate=f"{most}/60s" if most else "off")
    chosen = msgspec.structs.replace(settings, dialects="none")
    return _SessionApp(agent or SessionAgent(deps), deps=deps, settings=chosen, scan=scan)


class _SessionApp(App):
    def __init__(
        self, agent: SessionAgent, *, deps: A2ATaskDeps, settings: Settings, scan: Scan | None
    ) -> None:
        self._deps, self._of_sessions = deps, agent
        self._scan = scan
        super().__init__(agent, settings=settings)

    def _add_routes(self, routes: Routes) -> None:
        houses = Houses(self.settings)
        endpoints = Endpoints(self.settings, self._discovery, self._streams, self.audit, houses)
        corvid = _Scanned(self.settings, endpoints)
        corvid.scan, corvid.audit = self._scan, self.audit
        corvid.agent = self._of_sessions
        corvid.add_to(routes, endpoints.answer_rest)
        routes.add(f"{_AGENTS_PATH}*", self._card, Access.PUBLIC)

    async def _card(self, request: Request) -> None:
        """Show the card of one of the agents."""
        if request.verb != "GET":
            await request.refuse_verb("GET")
            return
        wanted = request.path.removeprefix(_AGENTS_PATH)
        base, db = self._discovery.base(request), self._deps.db
        agents = self._deps.list_agents(db) if self._deps.list_agents else db.list_agents()
        for agent in agents:
            if wanted == f"{member(agent, 'id')}{_CARD_NAME}":
                enriching = db if hasattr(db, "get_persona") else None
                card = build_agent_card_for_agent(agent, base, enriching)
                kept = (b"cache-control", b"public, max-age=300")
                await document(request, card, kept, (b"access-control-allow-origin", b"*"))
                return
        await document(request, {"error": "Agent not found"}, status=404)


class _Scanned(CorvidEndpoints):
    """The two requests of corvid, whose texts are looked at first."""

    scan: Scan | None = None
    audit: Any = None
    agent: SessionAgent

    async def _prepared(self, operation: SendMessage) -> SendMessage:
        return await self.agent.in_session(operation)

    async def _answer(
        self, request: Request, method: str, params: Callable[[Request], Awaitable[Any]]
    ) -> None:
        if method != "tasks/send" or self.scan is None:
            await super()._answer(request, method, params)
            return
        problem: A2AError | None = None
        body: Any = None
        try:
            body = await params(request)
        except A2AError as error:
            problem = error

        async def read(_: Request) -> Any:
            if problem is not None:
                raise problem
            return body

        if problem is None and await self._is_injected(body):
            self.audit.record(
                "content.blocked",
                outcome="denied",
                who=request.caller.principal.text,
                object=request.mount.agent.name,
                reason="injection",
                address=request.address,
            )
            said = {"error": "Content policy violation", "code": "INJECTION_BLOCKED"}
            await document(request, said, status=403)
            return
        await super()._answer(request, method, read)

    async def _is_injected(self, body: Any) -> bool:
        fields = cast("dict[str, Any]", body) if type(body) is dict else {}
        inner: Any = fields.get("params")
        text: Any = (cast("dict[str, Any]", inner) if type(inner) is dict else fields).get(
            "message"
        )
        if not isinstance(text, str) or self.scan is None:
            return False
        found = self.scan(text)
        return await found if inspect.isawaitable(found) else found
