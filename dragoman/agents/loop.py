"""The agent loop: a message goes to a model, its calls go to tools, until the model answers.

Every model call and every tool call is a durable step: a turn that continues after a crash reuses
recorded results and repeats only what was under way. What the model says is one artifact, streamed
as it comes; a second run writes it anew, so that no text appears twice.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from dragoman.agents.calling import PlannedCall, ToolCaller
from dragoman.agents.hooks import Hook, LoopHooks, TurnOutcome
from dragoman.agents.local_tools import LocalTools
from dragoman.agents.model_metrics import count, model_call, span
from dragoman.agents.models import (
    Model,
    ModelFailed,
    ModelMessage,
    ModelReply,
    ModelRequest,
    ReplyChunk,
    joined_reply,
    text_of,
)
from dragoman.agents.tools import Toolbox, ToolProvider
from dragoman.authoring import hosting
from dragoman.authoring.agent import Agent
from dragoman.authoring.budget import Budget
from dragoman.authoring.turn import ArtifactWriter, Turn
from dragoman.config import Settings, StoreSettings
from dragoman.errors import ConfigError, TaskFailed
from dragoman.model.task import Task

if TYPE_CHECKING:
    # Heavy: loaded when a loop is invoked without a server.
    from dragoman.client.answer import Answer
    from dragoman.client.client import Client
    from dragoman.client.content import Content
    from dragoman.client.streams.stream import Stream

logger = logging.getLogger("dragoman.agents")


class Memory(Protocol):
    """The earlier conversation that a model is given."""

    async def recall(self, turn: Turn) -> list[ModelMessage]:
        """Return earlier messages, oldest first. Called once for a turn, as a step."""
        ...


class Decision(msgspec.Struct, frozen=True):
    """The model's reply, and which provider executes each of its calls."""

    reply: ModelReply
    calls: list[PlannedCall] = []


class AgentLoop:
    """An agent that answers with a model.

    `tools` are functions and providers; of two tools with one name the first is used. A turn ends
    with the first answer that asks for no tool, and fails after `max_rounds` without one or after
    `max_failures` calls of tools in a row that failed. Each message stands alone unless there is a
    `memory`. `options` go to the model as they are.
    """

    def __init__(
        self,
        model: Model,
        *,
        tools: Sequence[ToolProvider | Callable[..., Any]] = (),
        system: str = "",
        hooks: Sequence[Hook] = (),
        memory: Memory | None = None,
        max_rounds: int = 20,
        max_failures: int = 3,
        parallel: int = 5,
        tool_timeout: float | None = 120.0,
        max_result: int = 100_000,
        streaming: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if min(max_rounds, max_failures, parallel) < 1:
            raise ConfigError("max_rounds, max_failures and parallel are at least 1")
        self._model = model
        self._system = system
        self._hooks = LoopHooks(hooks)
        self._memory = memory
        self._max_rounds = max_rounds
        self._max_failures = max_failures
        self._streams = streaming and not self._hooks.holds_text
        self._options = dict(options or {})
        self._client: Client | None = None
        self._toolbox = Toolbox(_providers(tools))
        self._caller = ToolCaller(
            self._toolbox.providers,
            self._hooks,
            parallel=parallel,
            timeout=tool_timeout,
            max_result=max_result,
        )

    def agent(
        self, name: str, description: str, *, budget: Budget | None = None, **more: Any
    ) -> Agent:
        """Return an agent whose one skill this is; its tools are closed when it is not served any
        more. `more` is what `Agent` takes besides."""
        agent = Agent(name, description, budget=budget, **more)
        agent.closing.append(self.close)
        agent.skill(id="answer", description=description, tags=["chat"])(self.run)
        return agent

    async def run(self, turn: Turn) -> None:
        """Answer a message. As a skill of an agent of yours: `agent.skill(id="chat")(loop.run)`."""
        # Not an argument: a reply to a question that is no longer open begins a turn too, and
        # arguments are only parsed from messages that were meant to begin one.
        message = turn.message
        with span("loop.start", {"agent.task.id": turn.task_id, "session.id": turn.context}):
            past = await turn.step("begin", self._begin, turn)
            system = [ModelMessage("system", self._system)] if self._system else []
            messages = [*system, *past, ModelMessage("user", text_of(message))]
            async with turn.artifact(name="answer") as writer:
                text = _AnswerText(writer)
                outcome = await self._answer(messages, turn, text)
                if not text.is_written:
                    # An earlier run may have written text that is not the answer.
                    await writer.write("")
            await self._hooks.after_turn(outcome, turn)

    @property
    def client(self) -> "Client":
        """A client of this loop alone, which runs in this process and keeps its tasks in memory
        until `close`."""
        if self._client is None:
            from dragoman.client.client import Client

            agent = self.agent("Loop", "Answers with a model.")
            self._client = Client(
                app=hosting.make_app(agent, Settings(stores=StoreSettings(location="memory:")))
            )
        return self._client

    def invoke(self, message: "Content", *, context_id: str = "", task_id: str = "") -> "Stream":
        """Return the A2A events of a task with this message, to iterate over. Several messages of
        one conversation have one `context_id`, answers to a question the `task_id`."""
        return self.client.stream(message, context_id=context_id, task_id=task_id)

    def invoke_sync(
        self, message: "Content", *, context_id: str = "", task_id: str = ""
    ) -> "Answer":
        """Return the answer to a message, for code that is not async. It runs on an event loop of
        its own: one `AgentLoop` is used by `invoke_sync` or by `invoke`, not by both."""
        return self.client.sync.send(message, context_id=context_id, task_id=task_id)

    async def cancel(self, task_id: str) -> Task:
        """Cancel a task of `invoke`, and return it as it ended."""
        return await self.client.cancel(task_id)

    async def close(self) -> None:
        """Close the tools and the model, and end invoked tasks; the next use opens them again."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        await self._toolbox.close()
        close = getattr(self._model, "close", None)
        if close is not None:
            await close()

    async def _begin(self, turn: Turn) -> list[ModelMessage]:
        await self._hooks.before_turn(turn)
        return await self._memory.recall(turn) if self._memory is not None else []

    async def _answer(
        self, messages: list[ModelMessage], turn: Turn, text: "_AnswerText"
    ) -> TurnOutcome:
        outcome = TurnOutcome("")
        failures = 0
        for number in range(1, self._max_rounds + 1):
            with span("loop.iteration", {"agent.iteration": number}):
                request = ModelRequest(
                    list(messages),
                    options=self._options,
                    used=outcome.usage,
                    spent=outcome.cost,
                )
                text.begin()
                decision = await turn.step("model", self._decide, request, turn, text)
                reply = decision.reply
                if not text.is_live:
                    await text.write(reply.text)
                outcome = TurnOutcome(
                    reply.text,
                    outcome.usage + reply.usage,
                    outcome.cost + reply.cost,
                    number,
                    outcome.tool_calls + len(decision.calls),
                )
                if not decision.calls:
                    return outcome
                messages.append(ModelMessage("assistant", reply.text, reply.tool_calls))
                results = await self._caller.results(decision.calls, turn)
            for planned, result in zip(decision.calls, results, strict=True):
                messages.append(
                    ModelMessage(
                        "tool", result.content, call_id=planned.call.id, is_error=result.is_error
                    )
                )
                failures = failures + 1 if result.is_error else 0
                if failures >= self._max_failures:
                    raise TaskFailed(f"The agent's tools failed {failures} times in a row.")
        raise TaskFailed(f"The agent did not come to an answer in {self._max_rounds} rounds.")

    async def _decide(self, request: ModelRequest, turn: Turn, text: "_AnswerText") -> Decision:
        """Ask the model; return its reply and the providers of its calls."""
        offered = {one.tool.name: one for one in await self._toolbox.offered()}
        tools = await self._hooks.filter_tools([one.tool for one in offered.values()], turn)
        request = msgspec.structs.replace(request, tools=list(tools))
        request = await self._hooks.before_model(request, turn)
        try:
            reply = await self._complete(request, text)
        except ModelFailed as error:
            logger.warning("task %s: the model failed: %s", turn.task_id, error)
            raise TaskFailed("The model did not answer.") from error
        reply = await self._hooks.after_model(reply, turn)
        allowed = {tool.name for tool in request.tools}
        calls: list[PlannedCall] = []
        for call in reply.tool_calls:
            found = offered.get(call.name) if call.name in allowed else None
            if found is None:
                calls.append(PlannedCall(call))
            else:
                # A call with unreadable arguments is answered by the loop.
                records_itself = found.tool.records_itself and not call.broken
                calls.append(PlannedCall(call, found.provider, records_itself))
        return Decision(reply, calls)

    async def _complete(self, request: ModelRequest, text: "_AnswerText") -> ModelReply:
        name = getattr(self._model, "name", type(self._model).__name__)
        with model_call({"gen_ai.request.model": str(name)}) as begun:
            if not self._streams:
                reply = await self._model.complete(request)
            else:
                chunks: list[ReplyChunk] = []
                async for chunk in self._model.stream(request):
                    chunks.append(chunk)
                    await text.stream(chunk.text)
                reply = joined_reply(chunks)
            count(reply.usage, begun)
        return reply


class _AnswerText:
    """The text of the model's replies in a turn, with a blank line between two of them."""

    def __init__(self, writer: ArtifactWriter) -> None:
        self._writer = writer
        self.is_written = False
        # Whether the present reply was streamed; a recorded one was not.
        self.is_live = False
        self._needs_break = False

    def begin(self) -> None:
        """Note that the next reply begins."""
        self.is_live = False
        self._needs_break = self.is_written

    async def stream(self, text: str) -> None:
        """Write a chunk of a streamed reply."""
        self.is_live = True
        await self.write(text)

    async def write(self, text: str) -> None:
        """Write text of a reply."""
        if not text:
            return
        if self._needs_break:
            text = f"\n\n{text}"
        self._needs_break = False
        self.is_written = True
        await self._writer.write(text)


def _providers(tools: Sequence[ToolProvider | Callable[..., Any]]) -> list[ToolProvider]:
    """Return providers in the given order; adjacent functions share one provider."""
    found: list[ToolProvider] = []
    functions: list[Callable[..., Any]] = []
    for one in tools:
        if hasattr(one, "list_tools"):
            if functions:
                found.append(LocalTools(*functions))
                functions = []
            found.append(cast(ToolProvider, one))
        elif callable(one):
            functions.append(one)
        else:
            raise ConfigError(f"{one!r} is neither a function nor a provider of tools")
    return [*found, LocalTools(*functions)] if functions else found
