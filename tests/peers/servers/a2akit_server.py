"""The server of PyPI a2akit: 0.3 over JSON-RPC and REST, with everything in memory."""

import asyncio
from collections.abc import Sequence

import playing
from a2akit import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker
from announcing import serve
from fastapi import FastAPI

POLL_EVERY = 0.02


class Stage:
    """A task of this library: an artifact has one part there, so parts come as artifacts."""

    def __init__(self, context: TaskContext) -> None:
        self.context = context

    async def reply(self, text: str) -> None:
        await self.context.reply_directly(text)

    async def work(self) -> None:
        await self.context.send_status("Working")

    async def artifact(
        self, parts: Sequence[playing.Part], *, append: bool = False, last: bool = True
    ) -> None:
        for number, part in enumerate(parts):
            await self.context.emit_artifact(
                artifact_id=f"result-{number}" if number else "result",
                text=part.text,
                data=part.data,
                file_bytes=part.raw,
                filename=part.filename or None,
                media_type=part.media_type or None,
                append=append,
                last_chunk=last,
            )

    async def complete(self) -> None:
        await self.context.complete()

    async def ask(self, question: str) -> None:
        await self.context.request_input(question)

    async def fail(self, reason: str) -> None:
        await self.context.fail(reason)

    async def canceled(self) -> None:
        # The library tells by a flag, and cancels the task itself.
        while not self.context.is_cancelled:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(POLL_EVERY)


class Player(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        parts = [playing.Part(text=ctx.user_text)]
        parts += [
            playing.Part(
                raw=file.content, filename=file.filename or "", media_type=file.media_type or ""
            )
            for file in ctx.files
        ]
        parts += [playing.Part(data=data) for data in ctx.data_parts]
        await playing.play(parts, Stage(ctx), answering=bool(ctx.history))


def make_app(address: str) -> FastAPI:
    card = AgentCardConfig(
        name="Player",
        description="Does what the text says.",
        version="1.0.0",
        capabilities=CapabilitiesConfig(streaming=True, push_notifications=True),
        input_modes=["text/plain", "application/json", "application/x-report"],
        output_modes=["text/plain", "application/json", "application/x-report"],
    )
    server = A2AServer(
        worker=Player(),
        agent_card=card,
        additional_protocols=["http+json"],
        push_allow_http=True,
        push_allowed_hosts={"127.0.0.1"},
    )
    return server.as_fastapi_app()


if __name__ == "__main__":
    serve(make_app)
