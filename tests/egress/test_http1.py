"""The client's own HTTP/1.1, against servers that say every byte themselves; on both loops."""

import asyncio
import gzip
import itertools
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from harness.certificates import SERVER, Authority
from harness.stub_servers import listening
from harness.waiting import WAIT, within

from dragoman.egress import dial
from dragoman.egress import egress as module
from dragoman.egress.answers import StreamedResponse
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressFailed, EgressRefused
from dragoman.egress.http1 import LONGEST_HEAD, MOST_HEADERS, MOST_UNREAD
from dragoman.egress.pool import Pool
from dragoman.egress.targets import Anywhere

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LARGE = 12 << 20
# Sealing takes a while.
LONG = 3 << 20

# What a server does on one connection: the first is number 0.
Part = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


@pytest.fixture(params=[{}, {"use_uvloop": True}], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", request.param


@asynccontextmanager
async def playing(
    part: Part, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """Serve one part on every connection; yields the port."""
    numbers = itertools.count()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await part(reader, writer, next(numbers))

    async with listening(talk, host=host, tls=tls) as port, asyncio.timeout(WAIT):
        yield port


def saying(*answers: bytes, heads: list[bytes] | None = None) -> Part:
    """Answer the requests of a connection in turn, and the rest with the last."""

    async def part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        left = list(answers)
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if heads is not None:
                heads.append(head)
            writer.write(left.pop(0) if len(left) > 1 else left[0])
            await writer.drain()

    return part


def hanging_up(answer: bytes) -> Part:
    async def part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    return part


def client(**more: Any) -> Egress:
    return Egress(policy=Anywhere(), **{"keep_alive": True, **more})


async def body_of(reply: StreamedResponse) -> bytes:
    return b"".join([piece async for piece in reply.chunks()])


async def ask(egress: Egress, port: int, method: str = "GET", **more: Any) -> tuple[int, bytes]:
    url = f"http://127.0.0.1:{port}/"
    async with egress.open(method, url, headers={}, **{"reuse": True, **more}) as reply:
        return reply.status, await body_of(reply)


async def reason_of(part: Part) -> str:
    async with playing(part) as port, client() as egress:
        with pytest.raises(EgressFailed) as failed:
            await ask(egress, port)
        assert failed.value.is_sent
        return failed.value.reason


class Counted:
    """A part, and how many connections it had."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.connections = 0

    async def __call__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        self.connections += 1
        await self._part(reader, writer, number)


class TestKeeping:
    """When a connection serves another request."""

    @pytest.mark.parametrize(
        "answer",
        [
            OK,
            b"HTTP/1.1 204 Nothing\r\n\r\n",
            b"HTTP/1.1 304 Same\r\nContent-Length: 70\r\n\r\n",
            b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nX: y\r\n\r\n" + OK,
        ],
    )
    async def test_after_an_answer_that_was_read_to_its_end(self, answer: bytes) -> None:
        part = Counted(saying(answer))
        async with playing(part) as port, client() as egress:
            for _ in range(3):
                status, _ = await ask(egress, port)
                assert status in (200, 204, 304)
        assert part.connections == 1

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
            OK + OK,
            OK + b"x",
            OK + b"HTTP/1.1 200 O",
        ],
    )
    async def test_not_after_one_that_ends_it_or_says_too_much(self, answer: bytes) -> None:
        part = Counted(saying(answer))
        async with playing(part) as port, client() as egress:
            for _ in range(3):
                assert await ask(egress, port) == (200, b"ok")
        assert part.connections == 3

    async def test_not_after_one_that_was_left_unread(self) -> None:
        part = Counted(saying(OK))
        async with playing(part) as port, client() as egress:
            for _ in range(2):
                url = f"http://127.0.0.1:{port}/"
                async with egress.open("GET", url, headers={}) as reply:
                    assert reply.status == 200
        assert part.connections == 2

    async def test_an_answer_may_be_read_once_more_but_has_nothing_left(self) -> None:
        async with playing(saying(OK)) as port, client() as egress:
            async with egress.open("GET", f"http://127.0.0.1:{port}/", headers={}) as reply:
                assert await body_of(reply) == b"ok"
                assert await ask(egress, port) == (200, b"ok")
            assert await body_of(reply) == b""

    @pytest.mark.parametrize("unasked", [b"", OK])
    async def test_not_after_the_peer_said_something_meanwhile(
        self, unasked: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "IDLE", 60.0)
        go, gone = asyncio.Event(), asyncio.Event()

        async def part(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await go.wait()
            writer.write(unasked) if unasked else writer.write_eof()
            # The client hangs up as soon as it hears that.
            await reader.read()
            gone.set()

        counted = Counted(part)
        async with playing(counted) as port, client() as egress:
            await ask(egress, port, "POST")
            go.set()
            await gone.wait()
            assert await ask(egress, port, "POST") == (200, b"ok")
        assert counted.connections == 2

    async def test_a_good_bye_that_crosses_a_request_matters_only_if_it_cannot_be_repeated(
        self,
    ) -> None:
        async def part(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")

        counted = Counted(part)
        async with playing(counted) as port, client() as egress:
            assert await ask(egress, port) == (200, b"ok")
            assert await ask(egress, port) == (200, b"ok")
            assert counted.connections == 2
            with pytest.raises(EgressFailed) as failed:
                await ask(egress, port, "POST")
            assert (failed.value.reason, failed.value.is_sent) == ("HungUp", True)
        assert counted.connections == 2

    async def test_a_first_connection_that_ends_so_is_no_reason_to_ask_again(self) -> None:
        counted = Counted(hanging_up(b""))
        assert await reason_of(counted) == "HungUp"
        assert counted.connections == 1


class TestAnswers:
    """Every way in which an answer says where it ends, and what is said when it does not."""

    async def test_one_ends_with_its_connection(self) -> None:
        part = hanging_up(b"HTTP/1.0 200 OK\r\nX: 1\r\n\r\nall of it")
        async with playing(part) as port, client() as egress:
            assert await ask(egress, port) == (200, b"all of it")

    async def test_one_to_a_question_for_the_head_has_no_body(self) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 70\r\n\r\n"
        async with playing(saying(answer)) as port, client() as egress:
            for _ in range(2):
                assert await ask(egress, port, "HEAD") == (200, b"")

    async def test_the_first_of_several_headers_counts_and_early_ones_do_not(self) -> None:
        answer = b"HTTP/1.1 103 Hints\r\nX-A: 0\r\n\r\nHTTP/1.1 200 OK\r\nX-A: 1 \r\nx-a: 2\r\n"
        answer += b"X-B: \xc3\xbc\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-C: 3\r\n\r\n"
        async with playing(saying(answer)) as port, client() as egress:
            answered = await egress.get(f"http://127.0.0.1:{port}/")
        assert answered.headers == {"x-a": "1", "x-b": "ü", "transfer-encoding": "chunked"}

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        ],
    )
    async def test_one_that_ends_too_early_has_failed(self, answer: bytes) -> None:
        assert await reason_of(hanging_up(answer)) == "CutShort"

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (b"HTTP/1.1 101 Switching\r\n\r\n", "NotHttp"),
            (b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + OK, "NotHttp"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "NotHttp"),
            (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 9000 + b"\r\n\r\n", "HeadTooLong"),
            (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (MOST_HEADERS + 1) + b"\r\n", "HeadTooLong"),
            (b"HTTP/1.1 103 Hints\r\n\r\n" * 4000, "HeadTooLong"),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
                + b"x" * 4 * LONGEST_HEAD,
                "HeadTooLong",
            ),
            (b"HTTP/1.1 200 OK\r\nContent-Le", "HungUp"),
        ],
    )
    async def test_one_that_is_none_has_failed(self, answer: bytes, reason: str) -> None:
        assert await reason_of(hanging_up(answer)) == reason

    async def test_one_that_nobody_reads_makes_the_peer_wait(self) -> None:
        written = 0
        full = asyncio.Event()

        async def part(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
        ) -> None:
            nonlocal written
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE)
            while written < LARGE:
                try:
                    writer.write(bytes(1 << 16))
                    async with asyncio.timeout(None if full.is_set() else 0.3):
                        await writer.drain()
                except TimeoutError:
                    full.set()
                    await writer.drain()
                written += 1 << 16
            full.set()

        async with (
            playing(part) as port,
            client() as egress,
            egress.open("GET", f"http://127.0.0.1:{port}/", headers={}) as reply,
        ):
            await full.wait()
            assert written < LARGE
            pieces = [piece async for piece in reply.chunks()]
        assert sum(map(len, pieces)) == LARGE
        assert max(map(len, pieces)) <= 4 * MOST_UNREAD


def packed(encoding: str, body: bytes) -> bytes:
    head = "HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n"
    return (head % (encoding, len(body))).encode() + body


class TestPacked:
    """Answers of peers that pack although they were asked not to."""

    @pytest.mark.parametrize(
        ("encoding", "body"),
        [
            ("gzip", gzip.compress(b"a" * 100_000, mtime=0)),
            (
                "X-GZIP",
                gzip.compress(b"a" * 70_000, mtime=0) + gzip.compress(b"a" * 30_000, mtime=0),
            ),
            ("deflate", zlib.compress(b"a" * 100_000)),
            ("deflate", zlib.compress(b"a" * 100_000, wbits=-15)),
            ("identity", b"a" * 100_000),
        ],
    )
    async def test_one_is_unpacked(self, encoding: str, body: bytes) -> None:
        part = Counted(saying(packed(encoding, body)))
        async with playing(part) as port, client() as egress:
            for _ in range(2):
                assert await ask(egress, port) == (200, b"a" * 100_000)
        assert part.connections == 1

    @pytest.mark.parametrize(
        ("encoding", "body"),
        [
            ("br", b"PEER"),
            ("gzip, gzip", gzip.compress(gzip.compress(b"x", mtime=0), mtime=0)),
            ("gzip", b"PEER"),
            ("gzip", gzip.compress(b"a" * 1000, mtime=0)[:-4]),
            ("deflate", zlib.compress(b"a" * 1000)[:-4]),
        ],
    )
    async def test_one_that_cannot_be_has_failed(self, encoding: str, body: bytes) -> None:
        assert await reason_of(saying(packed(encoding, body))) == "NotUnpacked"

    async def test_one_without_a_body_is_not_looked_at(self) -> None:
        async with playing(saying(packed("br", b""))) as port, client() as egress:
            assert await ask(egress, port) == (200, b"")


class TestRequests:
    """What goes out."""

    async def test_a_request_says_where_it_goes_and_where_it_ends(self) -> None:
        heads: list[bytes] = []

        async def resolve(host: str) -> Sequence[str]:
            return ["127.0.0.1"]

        async with (
            playing(saying(OK, heads=heads)) as port,
            client(resolver=resolve) as kept,
            client(resolver=resolve, keep_alive=False) as egress,
        ):
            url = f"http://one.example:{port}/a?b"
            async with kept.open("GET", url, headers={"X-A": "ü", "user-agent": "me"}):
                pass
            async with egress.open("POST", url, headers={}, body=None):
                pass
            for trace in ("00-1", "00-2"):
                # The trace is another one every time, the rest of the head is kept.
                headers = {"traceparent": trace, "x-a": "b"}
                async with egress.open("PUT", url, headers=headers, body=b"x"):
                    pass
            with pytest.raises(EgressRefused) as refused:
                await egress.get(url, headers={"traceparent": "00\r\nx: y"})
            assert refused.value.reason == "the header 'traceparent' has a control in its value"
        host = f"Host: one.example:{port}\r\n"
        always = "Accept-Encoding: identity\r\n"
        ours = "User-Agent: dragoman\r\nAccept: */*\r\n"
        put = (
            f"PUT /a?b HTTP/1.1\r\n{host}x-a: b\r\n{ours}Content-Type: application/octet-stream\r\n"
            f"Connection: close\r\n{always}"
        )
        assert [head.decode() for head in heads] == [
            f"GET /a?b HTTP/1.1\r\n{host}x-a: ü\r\nuser-agent: me\r\nAccept: */*\r\n{always}\r\n",
            f"POST /a?b HTTP/1.1\r\n{host}{ours}Connection: close\r\n{always}"
            "Content-Length: 0\r\n\r\n",
            f"{put}traceparent: 00-1\r\nContent-Length: 1\r\n\r\n",
            f"{put}traceparent: 00-2\r\nContent-Length: 1\r\n\r\n",
        ]

    async def test_a_long_body_arrives_whole_and_waits_for_the_peer(self) -> None:
        sent = bytes(range(256)) * (LARGE // 256)
        taken: list[bytes] = []

        async def part(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            taken.append(await reader.readexactly(LARGE))
            writer.write(OK)
            await writer.drain()
            await reader.read()

        counted = Counted(part)
        told: list[tuple[int, int]] = []

        def on_sent(count: int, total: int) -> None:
            told.append((count, total))

        async with playing(counted) as port, client(on_sent=on_sent) as egress:
            assert await ask(egress, port, "POST", body=sent) == (200, b"ok")
        assert taken == [sent]
        # Who waits sees it go out, up to the last byte.
        assert len(told) > 10 and told == sorted(told) and told[-1] == (LARGE, LARGE)

    async def test_an_answer_before_the_end_of_a_body_is_heard_and_ends_the_connection(
        self,
    ) -> None:
        refusal = b"HTTP/1.1 413 Too much\r\nContent-Length: 2\r\n\r\nno"

        async def part(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(refusal)
            await writer.drain()
            await asyncio.Event().wait()

        counted = Counted(part)
        async with playing(counted) as port, client() as egress:
            for _ in range(2):
                assert await ask(egress, port, "POST", body=bytes(LARGE)) == (413, b"no")
        assert counted.connections == 2


class Held:
    """Answers only when it is told to, and knows who asked."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, asyncio.Event]] = asyncio.Queue()

    async def __call__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            go = asyncio.Event()
            self.asked.put_nowait((head.split()[1].decode(), go))
            await go.wait()
            writer.write(OK)


@pytest.mark.parametrize("keep_alive", [True, False])
class TestPlaces:
    """How many may ask one peer at once."""

    @staticmethod
    def get(egress: Egress, port: int, name: str) -> "asyncio.Task[bytes]":
        async def run() -> bytes:
            url = f"http://127.0.0.1:{port}/{name}"
            async with egress.open("GET", url, headers={}) as reply:
                return await body_of(reply)

        return asyncio.create_task(run())

    async def test_who_comes_later_waits_in_turn_and_may_give_up(self, keep_alive: bool) -> None:
        held = Held()
        async with (
            playing(held) as port,
            playing(saying(OK)) as other,
            client(per_host=2, keep_alive=keep_alive) as egress,
        ):
            tasks = {name: self.get(egress, port, name) for name in "abcdef"}
            first = [await held.asked.get() for _ in range(2)]
            assert {name for name, _ in first} == {"/a", "/b"}
            assert held.asked.empty()
            # Another peer has places of its own.
            assert await ask(egress, other) == (200, b"ok")
            tasks["c"].cancel()
            first[0][1].set()
            name, go = await held.asked.get()
            assert name == "/d"
            # Those who fail or are canceled leave their place as well.
            tasks["d"].cancel()
            name, go = await held.asked.get()
            assert name == "/e" and held.asked.empty()
            go.set()
            name, go = await held.asked.get()
            assert name == "/f"
            go.set()
            first[1][1].set()
            done = await asyncio.gather(*tasks.values(), return_exceptions=True)
            assert [one == b"ok" for one in done] == [True, True, False, False, True, True]

    async def test_a_place_that_is_given_to_somebody_who_just_gave_up_goes_on(
        self, keep_alive: bool
    ) -> None:
        held = Held()
        async with playing(held) as port, client(per_host=1, keep_alive=keep_alive) as egress:
            tasks = {name: self.get(egress, port, name) for name in "abc"}
            _, go = await held.asked.get()
            # The first is done in the same moment as the second gives up, whichever is first.
            tasks["a"].add_done_callback(lambda _: tasks["b"].cancel())
            go.set()
            name, go = await held.asked.get()
            if name == "/b":
                name, go = await held.asked.get()
            assert name == "/c"
            go.set()
            assert await tasks["c"] == b"ok"

    async def test_all_peers_together_have_places_too(
        self, keep_alive: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "CONNECTIONS", 2)
        held = Held()
        async with (
            playing(held) as one,
            playing(held) as two,
            client(per_host=2, keep_alive=keep_alive) as egress,
        ):
            tasks = [self.get(egress, one, "a"), self.get(egress, one, "b")]
            asked = [await held.asked.get() for _ in range(2)]
            tasks += [self.get(egress, one, "c"), self.get(egress, two, "d")]
            tasks += [self.get(egress, one, "e")]
            for _, go in asked:
                go.set()
            asked = [await held.asked.get() for _ in range(2)]
            # Who waits for another peer is not behind all that wait for the first.
            assert {name for name, _ in asked} == {"/c", "/d"} and held.asked.empty()
            for _, go in asked:
                go.set()
            (await held.asked.get())[1].set()
            assert await asyncio.gather(*tasks) == [b"ok"] * 5

    async def test_who_waits_for_a_place_is_told_that_the_client_was_closed(
        self, keep_alive: bool
    ) -> None:
        held = Held()
        async with playing(held) as port:
            egress = client(per_host=1, keep_alive=keep_alive)
            tasks = [self.get(egress, port, name) for name in "ab"]
            await held.asked.get()
            await egress.close()
            for task, is_sent in zip(tasks, (True, False), strict=True):
                with pytest.raises(EgressFailed) as failed:
                    await task
                assert failed.value.reason == "the client was closed"
                assert failed.value.is_sent is is_sent


async def test_a_place_is_not_lost_with_somebody_who_gives_up_as_it_is_given() -> None:
    pool = Pool(most=8, per_origin=1, idle=None)
    origin = ("http", "one.example", 80)
    assert pool.enter(origin) and not pool.enter(origin)
    waiting = [asyncio.create_task(pool.wait(origin)) for _ in range(3)]
    await asyncio.sleep(0)
    # One leaves the queue; the next is given the place and does not live to take it.
    waiting[0].cancel()
    pool.leave(origin)
    assert not pool.enter(origin)
    waiting[1].cancel()
    async with asyncio.timeout(60):
        await waiting[2]
    assert all(task.cancelled() for task in waiting[:2])
    pool.leave(origin)
    assert pool.enter(origin)


async def test_who_waits_for_the_place_of_somebody_idle_is_told_of_the_end_at_once() -> None:
    async with playing(saying(OK)) as port:
        egress = client(per_host=1)
        async with egress.open("GET", f"http://127.0.0.1:{port}/", headers={}):
            waiting = asyncio.create_task(ask(egress, port))
            await asyncio.sleep(0)
            await egress.close()
            with pytest.raises(EgressFailed) as failed:
                await within(waiting)
        assert failed.value.reason == "the client was closed" and not failed.value.is_sent


class TestDialling:
    """From a name to a connection."""

    @staticmethod
    async def several(host: str) -> Sequence[str]:
        # Nobody listens at the first two.
        return ["127.0.0.3", "127.0.0.2", "127.0.0.1"]

    async def test_an_address_that_refuses_is_followed_by_the_next(self) -> None:
        async with playing(saying(OK)) as port, client(resolver=self.several) as egress:
            url = f"http://one.example:{port}/"
            assert (await egress.get(url)).body == b"ok"
            assert (await egress.post(url, b"x", {})).body == b"ok"

    async def test_a_failure_of_all_is_that_of_the_last(self) -> None:
        async with playing(saying(OK)) as port:
            pass
        async with client(resolver=self.several) as egress:
            with pytest.raises(EgressFailed) as failed:
                await egress.get(f"http://one.example:{port}/")
        assert failed.value.reason == "NotConnected: Connection refused"
        assert not failed.value.is_sent

    async def test_an_address_that_is_silent_gets_a_head_start_and_no_more(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        honest = dial.Dial._attempt  # type: ignore[reportPrivateUsage]  # no address is silent here
        ended: list[str] = []

        async def attempt(dial: dial.Dial, address: Any) -> Any:
            if str(address) != "127.0.0.1":
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(str(address))
            return await honest(dial, address)

        monkeypatch.setattr(dial.Dial, "_attempt", attempt)
        monkeypatch.setattr(dial, "HEAD_START", 0.01)
        async with playing(saying(OK)) as port, client(resolver=self.several) as egress:
            assert (await egress.get(f"http://one.example:{port}/")).body == b"ok"
        assert set(ended) == {"127.0.0.3", "127.0.0.2"}

    @pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]])
    async def test_silence_has_an_end(
        self, monkeypatch: pytest.MonkeyPatch, addresses: list[str]
    ) -> None:
        async def attempt(dial: dial.Dial, address: Any) -> Any:
            await asyncio.Event().wait()

        async def resolve(host: str) -> Sequence[str]:
            return addresses

        monkeypatch.setattr(dial.Dial, "_attempt", attempt)
        async with client(resolver=resolve, connect_timeout=0.1) as egress:
            with pytest.raises(EgressFailed) as failed:
                await egress.get("http://one.example:8000/", timeout=10)
        assert failed.value.reason == "NotConnected: timed out" and not failed.value.is_sent


class TestSecured:
    """Over TLS, with certificates of an authority of our own."""

    @staticmethod
    def contexts(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        authority = Authority()
        issued = authority.issue(x509.DNSName(name), common_name=name, uses=(SERVER,))
        there = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        there.load_cert_chain(issued.save(folder, "server"))
        here = ssl.create_default_context(cadata=authority.der)
        return there, here

    @staticmethod
    async def home(host: str) -> Sequence[str]:
        return ["127.0.0.1"]

    async def test_a_peer_that_is_whom_it_says_is_asked_and_kept(self, tmp_path: Path) -> None:
        there, here = self.contexts(tmp_path, "one.example")
        large = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LONG + bytes(LONG)
        part = Counted(saying(OK, large, OK))
        async with playing(part, there) as port, client(tls=here, resolver=self.home) as egress:
            for length in (2, LONG, 2):
                url = f"https://one.example:{port}/"
                async with egress.open("GET", url, headers={}) as reply:
                    assert len(await body_of(reply)) == length
        assert part.connections == 1

    async def test_a_long_body_is_sent(self, tmp_path: Path) -> None:
        there, here = self.contexts(tmp_path, "one.example")

        async def part(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(LONG) == bytes(LONG)
            writer.write(OK)
            await writer.drain()

        async with playing(part, there) as port, client(tls=here, resolver=self.home) as egress:
            answer = await egress.post(f"https://one.example:{port}/", bytes(LONG), {})
        assert answer.body == b"ok"

    async def test_another_name_an_unknown_authority_and_plain_http_are_no_connection(
        self, tmp_path: Path
    ) -> None:
        there, here = self.contexts(tmp_path, "one.example")
        reasons: list[str] = []

        async def talkative(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
        ) -> None:
            writer.write(OK)
            await writer.drain()

        async with playing(saying(OK), there) as port, playing(talkative) as plain:
            for host, to, context in (
                ("two.example", port, here),
                ("one.example", port, ssl.create_default_context()),
                ("one.example", plain, here),
            ):
                async with client(tls=context, resolver=self.home) as egress:
                    with pytest.raises(EgressFailed) as failed:
                        await egress.get(f"https://{host}:{to}/")
                assert not failed.value.is_sent
                reasons.append(failed.value.reason)
        assert reasons[0].startswith("NotSecured: Hostname mismatch")
        assert reasons[1].startswith("NotSecured: unable to get local issuer certificate")
        assert reasons[2] in (
            "NotSecured: WRONG_VERSION_NUMBER",
            "NotSecured: RECORD_LAYER_FAILURE",
        )
