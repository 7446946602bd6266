"""PyPI a2akit as a client: 0.3 over JSON-RPC."""

import base64

import talking
from a2a.types import DataPart, FilePart, FileWithBytes, Part, TextPart
from a2akit import A2AClient
from a2akit.client.errors import TaskNotFoundError
from talking import same


class Kit:
    def __init__(self, place: talking.Place) -> None:
        self.place = place

    def open(self) -> A2AClient:
        return A2AClient(self.place.address)

    async def send(self) -> None:
        async with self.open() as client:
            done = await client.send("echo hello")
        same((done.state, done.text), ("completed", "hello"))

    async def stream(self) -> None:
        async with self.open() as client:
            texts = [text async for text in client.stream_text(f"chunks {talking.CHUNKS}")]
        same(("".join(texts), len(texts)), (talking.WHOLE, talking.CHUNKS))

    async def get(self) -> None:
        async with self.open() as client:
            sent = await client.send("echo hello")
            found = await client.get_task(sent.task_id)
        same((found.task_id, found.state, found.text), (sent.task_id, "completed", "hello"))

    async def cancel(self) -> None:
        async with self.open() as client:
            task = await self.begun(client, "cancelme")
            same((await client.cancel(task)).state, "canceled")

    async def subscribe(self) -> None:
        async with self.open() as client:
            task = await self.begun(client, "cancelme")
            states: list[str] = []
            async for event in client.subscribe(task):
                if not states:
                    await client.cancel(task)
                states.append(event.state)
        same(states[-1], "canceled")

    async def begun(self, client: A2AClient, text: str) -> str:
        """Begin a task and leave its stream; a send of this library does not say "do not wait"."""
        events = client.stream(text)
        async for event in events:
            await events.aclose()
            return event.task_id
        raise AssertionError("the stream has no event")

    async def ask(self) -> None:
        async with self.open() as client:
            asked = await client.send("ask")
            same((asked.state, asked.text), ("input-required", talking.QUESTION))
            to = {"task_id": asked.task_id, "context_id": asked.context_id}
            done = await client.send("Graz", **to)
        same((done.task_id, done.state, done.text), (asked.task_id, "completed", "got Graz"))

    async def ask_in_a_stream(self) -> None:
        async with self.open() as client:
            asked = [event async for event in client.stream("ask")]
            same(asked[-1].state, "input-required")
            done = [event async for event in client.stream("Graz", task_id=asked[-1].task_id)]
        states = [event.state for event in done if event.state]
        same((states[-1], "input-required" in states), ("completed", False))

    async def files(self) -> None:
        encoded = base64.b64encode(talking.NOTES).decode()
        file = FileWithBytes(bytes=encoded, name="notes.txt", mime_type="text/plain")
        parts = [TextPart(text="describe"), FilePart(file=file), DataPart(data={"city": "Graz"})]
        async with self.open() as client:
            told = await client.send_parts([Part(part) for part in parts])
            given = await client.send("file")
        same(told.text, talking.DESCRIBED + '\ndata {"city":"Graz"}')
        same(given.data, talking.DATA)
        (report,) = (
            part.root.file
            for artifact in given.artifacts
            for part in artifact.parts
            if part.root.kind == "file"
        )
        same(base64.b64decode(report.bytes), talking.REPORT)

    async def failure(self) -> None:
        async with self.open() as client:
            done = await client.send("fail")
        same((done.state, done.text), ("failed", talking.REASON))

    async def unknown_task(self) -> None:
        async with self.open() as client:
            try:
                await client.get_task(talking.UNKNOWN_TASK)
            except TaskNotFoundError:
                return
        raise AssertionError("there is no such task")

    async def auth(self) -> None:
        same((await self.guarded(self.place.token)), "hello")
        try:
            await self.guarded("wrong")
        except Exception as error:
            if "401" not in str(error):
                raise
        else:
            raise AssertionError("not refused")

    async def guarded(self, token: str) -> str | None:
        headers = {"Authorization": f"Bearer {token}"}
        async with A2AClient(self.place.guarded, headers=headers) as client:
            return (await client.send("echo hello")).text


if __name__ == "__main__":
    talking.run(Kit)
