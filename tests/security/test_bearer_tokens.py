"""Static bearer tokens: from a setting, a file or code; what is no token, and what changes."""

import asyncio
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from harness.clock import Clock
from harness.waiting import WAIT

from dragoman.errors import ConfigError
from dragoman.model.identity import Caller
from dragoman.security.authentication import CredentialRefused, Denied, Evidence, Gatekeeper
from dragoman.security.bearer_tokens import COUNTS_FOR, BearerTokens

TOKEN = "a-token-of-somebody"
ALICE = "alice-has-this-token"
BOB = "bob-has-another-token"
FILE = f"""
[alice]
token = "{ALICE}"
scopes = ["weather", "maps"]
tenant = "acme"

[bob]
token = "{BOB}"
"""


def bearer(token: str) -> Evidence:
    return Evidence([(b"authorization", f"Bearer {token}".encode())])


async def caller(way: BearerTokens, token: str) -> Caller | None:
    found = await way.authenticate(bearer(token))
    return found.caller if found else None


def written(folder: Path, text: str = FILE, mode: int = 0o600) -> Path:
    path = folder / "tokens.toml"
    draft = folder / "tokens.new"
    draft.write_text(text)
    draft.chmod(mode)
    os.replace(draft, path)
    return path


async def test_one_token_lets_its_holder_in() -> None:
    way = BearerTokens(TOKEN)
    await way.start()
    found = await way.authenticate(bearer(TOKEN))
    assert found is not None and found.caller == Caller("token:default", True)
    assert way.still_holds(found)
    assert TOKEN not in repr(vars(way)) + repr(found)


@pytest.mark.parametrize(
    "token", [TOKEN[:-1], TOKEN + "x", TOKEN.upper(), TOKEN[:-1] + "x", "x", "a.jwt.perhaps"]
)
async def test_a_token_nobody_here_knows_may_be_known_to_others(token: str) -> None:
    assert await BearerTokens(TOKEN).authenticate(bearer(token)) is None


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"Basic YTpi"],
        [TOKEN.encode()],
    ],
)
async def test_what_is_no_bearer_is_none_of_ours(values: list[bytes]) -> None:
    way = BearerTokens(TOKEN)
    assert await way.authenticate(Evidence([(b"authorization", value) for value in values])) is None


@pytest.mark.parametrize(
    "values",
    [
        [b"Bearer"],
        [b"Bearer "],
        [f"Bearer  {TOKEN}".encode()],
        [f"Bearer {TOKEN} ".encode()],
        [f"Bearer {TOKEN}".encode()] * 2,
        [b"Bearer " + b"x" * 20_000],
        [b"Bearer \xff\xfe"],
    ],
)
async def test_a_bearer_that_is_read_in_two_ways_is_refused(values: list[bytes]) -> None:
    way = BearerTokens(TOKEN, check=lambda token: Caller("anybody"))
    with pytest.raises(CredentialRefused):
        await way.authenticate(Evidence([(b"authorization", value) for value in values]))


async def test_a_file_says_who_holds_what(tmp_path: Path) -> None:
    way = BearerTokens(TOKEN, file=written(tmp_path))
    await way.start()
    assert await caller(way, ALICE) == Caller(
        "token:alice", True, frozenset({"weather", "maps"}), "acme"
    )
    assert await caller(way, BOB) == Caller("token:bob", True)
    assert await caller(way, TOKEN) == Caller("token:default", True)
    assert await caller(way, "of-nobody-at-all") is None


async def test_a_file_that_changes_is_read_again_within_a_second(tmp_path: Path) -> None:
    clock = Clock()
    way = BearerTokens(file=written(tmp_path), monotonic=clock)
    await way.start()
    alice, bob = await way.authenticate(bearer(ALICE)), await way.authenticate(bearer(BOB))
    assert alice is not None and bob is not None
    written(tmp_path, f'[alice]\ntoken = "{ALICE}"\n')
    assert way.still_holds(bob)
    clock.now += 1
    assert not way.still_holds(bob) and await caller(way, BOB) is None
    # The same token with other rights is not what was let in.
    assert not way.still_holds(alice)
    assert await caller(way, ALICE) == Caller("token:alice", True)


async def test_a_change_within_one_tick_of_the_clock_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    path = written(tmp_path)
    # Whatever happens to the file, it looks the same.
    same, stat = path.stat(), os.stat

    def unchanged(name: Any, **more: Any) -> os.stat_result:
        return same if name == path else stat(name, **more)

    monkeypatch.setattr(os, "stat", unchanged)
    monkeypatch.setattr(os, "fstat", lambda file: same)
    way = BearerTokens(file=path, monotonic=clock)
    await way.start()
    other = "bob-took-another-one!"
    assert len(other) == len(BOB)
    path.write_text(FILE.replace(BOB, other))
    clock.now += 1
    assert await caller(way, BOB) is None and await caller(way, other) is not None


async def test_a_file_that_is_gone_lets_nobody_in_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    way = BearerTokens(file=written(tmp_path), monotonic=clock)
    await way.start()
    found = await way.authenticate(bearer(BOB))
    assert found is not None
    (tmp_path / "tokens.toml").unlink()
    for _ in range(3):
        clock.now += 1
        assert not way.still_holds(found) and await caller(way, ALICE) is None
    assert len(caplog.records) == 1 and "every caller is refused" in caplog.text
    written(tmp_path)
    clock.now += 1
    assert way.still_holds(found)


@pytest.mark.parametrize("breaks", ["text", "mode"])
async def test_a_file_that_breaks_while_serving_leaves_what_it_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, breaks: str
) -> None:
    clock = Clock()
    way = BearerTokens(file=written(tmp_path), monotonic=clock)
    await way.start()
    found = await way.authenticate(bearer(BOB))
    assert found is not None
    with caplog.at_level(logging.ERROR, "dragoman"):
        if breaks == "text":
            written(tmp_path, f'[alice]\ntoken = "{ALICE}')
        else:
            written(tmp_path, mode=0o640)
        for _ in range(3):
            clock.now += 1
            assert way.still_holds(found) and await caller(way, ALICE) is not None
    assert len(caplog.records) == 1 and "what it said before holds" in caplog.text
    assert ALICE not in caplog.text
    written(tmp_path, f'[alice]\ntoken = "{ALICE}"\n')
    clock.now += 1
    assert not way.still_holds(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[alice", "is not TOML"),
        ('[alice]\ntoken = "short"\n', r"\[alice\]: a token needs at least 16.*openssl rand -hex"),
        ('[alice]\ntoken = "with a space inside"\n', "visible ASCII"),
        ('[alice]\ntoken = "não-é-visível-em-ascii"\n', "visible ASCII"),
        ('[alice]\nscopes = ["x"]\n', r"\[alice\]: .*token"),
        (f'[alice]\ntoken = "{ALICE}"\nscope = "x"\n', "unknown field `scope`"),
        (f'[alice]\ntoken = "{ALICE}"\nscopes = "x"\n', "scopes"),
        (f'token = "{ALICE}"\n', r"\[token\]"),
        (f'[alice]\ntoken = "{ALICE}"\n[bob]\ntoken = "{ALICE}"\n', "two have the same token"),
        (f'[alice]\ntoken = "{TOKEN}"\n', "two have the same token"),
        (f'[""]\ntoken = "{ALICE}"\n', "names no owner"),
    ],
)
async def test_a_file_that_makes_no_sense_is_refused_and_never_quoted(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        await BearerTokens(TOKEN, file=written(tmp_path, text)).start()
    assert ALICE not in str(error.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602])
async def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        await BearerTokens(file=written(tmp_path, mode=mode)).start()


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    said: list[str] = []

    def start() -> None:
        for path in (pipe, tmp_path, tmp_path / "x"):
            with pytest.raises(ConfigError) as refused:
                asyncio.run(BearerTokens(file=path).start())
            said.append(str(refused.value).removeprefix(f"{path}: "))

    # In a thread: nothing else would end the wait for a writer.
    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join(WAIT)
    assert said == ["is no file", "is no file", "cannot be read (No such file or directory)"]


def test_tokens_that_are_too_short_or_missing_are_refused() -> None:
    with pytest.raises(ConfigError, match="DRAGOMAN_AUTH_TOKEN"):
        BearerTokens()
    with pytest.raises(ConfigError, match="auth_token: a token needs at least 16") as error:
        BearerTokens("fifteen-letters")
    assert "fifteen" not in str(error.value)
    with pytest.raises(ConfigError, match="the token of alice"):
        BearerTokens(tokens={"short": Caller("alice")})
    with pytest.raises(ConfigError, match="names no owner"):
        BearerTokens(tokens={TOKEN: Caller()})


async def test_code_may_say_who_holds_what() -> None:
    way = BearerTokens(
        tokens={
            ALICE: Caller("alice", scopes=frozenset({"maps"}), tenant="acme"),
            BOB: Caller("token:bob"),
        }
    )
    assert await caller(way, ALICE) == Caller("token:alice", True, frozenset({"maps"}), "acme")
    assert await caller(way, BOB) == Caller("token:bob", True)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_may_know_tokens_and_is_asked_again_soon(is_async: bool) -> None:
    known = {"t1": Caller("alice")}
    asked: list[str] = []

    def check(token: str) -> Caller | None:
        asked.append(token)
        return known.get(token)

    async def check_later(token: str) -> Caller | None:
        return check(token)

    clock = Clock()
    way = BearerTokens(check=check_later if is_async else check, monotonic=clock)
    gate = Gatekeeper([way])
    found = await gate.admit(bearer("t1"))
    assert found.caller == Caller("token:alice", True)
    assert await gate.admit(bearer("t1")) is found and asked == ["t1"]
    known.clear()
    clock.now += COUNTS_FOR
    with pytest.raises(Denied):
        await gate.admit(bearer("t1"))
    assert asked == ["t1", "t1"]


class Register:
    """A function that answers when it is told to."""

    def __init__(self, *answers: Caller | Exception | None) -> None:
        self.answers = list(answers)
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.answered: asyncio.Queue[None] = asyncio.Queue()

    async def __call__(self, token: str) -> Caller | None:
        self.is_asked.set()
        await self.may_answer.wait()
        answer = self.answers.pop(0)
        self.answered.put_nowait(None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def has_answered(self) -> None:
        """Wait for the next answer, and what is made of it in the same step."""
        await asyncio.wait_for(self.answered.get(), WAIT)


@pytest.mark.parametrize("last", [None, Caller("bob"), RuntimeError("down")])
async def test_a_stream_goes_on_while_the_function_says_the_same(
    last: Caller | Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    register = Register(*[Caller("alice")] * 3, last)
    register.may_answer.set()
    clock = Clock()
    way = BearerTokens(check=register, monotonic=clock)
    found = await way.authenticate(bearer("t1"))
    assert found is not None
    await register.has_answered()
    # Three quarters each time: together longer than one answer counts.
    for _ in range(3):
        clock.now += COUNTS_FOR * 3 / 4
        assert way.still_holds(found) and way.still_holds(found)
        await register.has_answered()
    assert register.answers == []
    assert not way.still_holds(found)
    assert ("kept out" in caplog.text) == isinstance(last, Exception)


async def test_a_function_that_does_not_answer_lets_nobody_go_on() -> None:
    register = Register(Caller("alice"), Caller("alice"))
    register.may_answer.set()
    clock = Clock()
    way = BearerTokens(check=register, monotonic=clock)
    found = await way.authenticate(bearer("t1"))
    assert found is not None
    register.may_answer.clear()
    register.is_asked.clear()
    clock.now += COUNTS_FOR / 2
    assert way.still_holds(found)
    await asyncio.wait_for(register.is_asked.wait(), WAIT)
    assert way.still_holds(found)
    clock.now += COUNTS_FOR / 2
    assert not way.still_holds(found)
    await asyncio.wait_for(way.stop(), WAIT)


@pytest.mark.parametrize("answer", [RuntimeError("down"), Caller(), "alice"])
async def test_a_function_that_fails_or_answers_nonsense_lets_nobody_in(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def check(token: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(Denied):
        await Gatekeeper([BearerTokens(check=check)]).admit(bearer("some-token"))
    assert "its callers are kept out" in caplog.text and "some-token" not in caplog.text


def test_the_card_and_the_challenge_say_bearer() -> None:
    way = BearerTokens(TOKEN)
    assert (way.name, way.challenge) == ("bearer", 'Bearer realm="dragoman"')
    assert way.schemes[way.name] == {"httpAuthSecurityScheme": {"scheme": "Bearer"}}
    assert way.reads == {b"authorization"}
