"""The commands that ask a running gateway about trust, credits and workflows, typed by its callers.

The gateway and its agent are behind real sockets; the commands have nothing but its address and a
token.
"""

import asyncio
import json
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harness.processes import environment
from harness.waiting import within

from dragoman.gateway.app import gateway_of
from tests.cli.command import Ended, call, document, fields, home, lines, typed
from tests.gateway.api.api_site import TOKENS, GatewaySite, gateway, headers_of, owners

HOURS = 72 * 3600


class Shell:
    """Where somebody types commands about a gateway."""

    def __init__(self, site: GatewaySite, folder: Path) -> None:
        self.site = site
        self._folder = folder

    async def type(self, *words: str, who: str = "buyer", **env: str) -> Ended:
        given = {"DRAGOMAN_GATEWAY": self.site.url, "A2ACLI_BEARER": TOKENS[who], **env}
        return await call(*words, cwd=self._folder, env=given)

    async def process(self, *words: str, who: str = "buyer") -> Ended:
        """Type what takes signals, and so needs a process of its own."""
        given = {"DRAGOMAN_GATEWAY": self.site.url, "A2ACLI_BEARER": TOKENS[who]}
        return await typed(*words, "-o", "json", cwd=self._folder, env=given)

    async def json(self, *words: str, who: str = "buyer", exit: int = 0) -> Any:
        return document(await self.type(*words, "-o", "json", who=who), exit)

    async def task(self) -> dict[str, Any]:
        """Have a task of the buyer's done."""
        buyer = headers_of("buyer")
        made = await self.site.make(headers=buyer)
        return (await self.site.events(made["id"], **buyer))[-1].data


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    """At a gateway that keeps ten credits of a buyer after a seller's agent is done."""
    async with owners(tmp_path, price=10, escrow=HOURS) as (site, _, _):
        yield Shell(site, tmp_path)


async def test_a_requester_rates_accepts_and_has_a_receipt(shell: Shell) -> None:
    task = await shell.task()
    id = task["id"]
    rated = await shell.json("trust", "rate", id, "5", "--comment", "fine")
    assert rated["result"] == "rated" and rated["agentId"] == shell.site.agent
    twice = await shell.json("trust", "rate", id, "1", exit=1)
    assert twice["error"]["code"] == "InvalidParamsError" and "rated" in twice["error"]["message"]
    kept = await shell.json("credits", "escrow")
    assert [(one["taskId"], one["escrow"]) for one in kept["items"]] == [(id, "delivered")]
    assert kept["items"][0]["side"] == "requester" and kept["nextPageToken"] == ""
    would = await shell.json("credits", "accept", id, "--dry-run")
    assert (would["result"], would["escrow"]) == ("would be paid", "delivered")
    balance = await shell.json("credits", "balance")
    assert balance == {"available": "990.00", "held": "10.00", "total": "1000.00"}
    early = await shell.json("credits", "receipt", id, exit=1)
    assert "escrow" in early["error"]["message"]
    for _ in range(2):
        paid = await shell.json("credits", "accept", id)
        assert paid == {"result": "paid", "taskId": id, "amount": "10.00", "escrow": "released"}
    told = fields((await shell.type("credits", "balance")).stdout)
    assert told == {"Available": "990.00", "Held": "0.00", "Total": "990.00"}
    assert (await shell.json("credits", "receipt", id))["receipt"].count(".") == 2
    assert (await shell.json("credits", "escrow"))["items"] == []
    one = fields((await shell.type("credits", "escrow", id, who="seller")).stdout)
    assert (one["Task"], one["Side"], one["Escrow"]) == (id, "payee", "released")


async def test_a_statement_is_read_in_pages_and_by_kind(shell: Shell) -> None:
    for _ in range(2):
        task = await shell.task()
        await shell.json("credits", "accept", task["id"])
    first = await shell.json("credits", "statement", "--kind", "task_debit", "--limit", "1")
    (line,) = first["items"]
    assert (line["kind"], line["amount"], line["balanceAfter"]) == (
        "task_debit",
        "-10.00",
        "980.00",
    )
    assert (line["reference"], line["escrow"]) == (task["id"], "released")
    rest = ("--kind", "task_debit", "--limit", "1", "--page-token", first["nextPageToken"])
    second = await shell.json("credits", "statement", *rest)
    assert second["items"][0]["balanceAfter"] == "990.00" and second["nextPageToken"] == ""
    streamed = await shell.type("credits", "statement", "-o", "json", "--stream")
    assert [one["kind"] for one in lines(streamed)].count("task_debit") == 2
    text = await shell.type("credits", "statement", "--limit", "1")
    token = fields(text.stdout)["Next-Page"]
    behind = await shell.json("credits", "statement", "--page-token", token)
    whole = await shell.json("credits", "statement")
    assert behind["items"] == whole["items"][1:]
    used = await shell.json("credits", "usage", "--period", "7d")
    assert (used["spent"], used["earned"], used["period"]) == ("20.00", "0.00", "7d")
    assert used["days"][-1]["spent"] == "20.00"
    assert "Spent: 20.00" in (await shell.type("credits", "usage")).stdout
    for words in (("--kind", "gift"), ("--page-token", "x"), ("--limit", "101")):
        assert (await shell.type("credits", "statement", *words)).returncode == 2


async def test_a_trigger_is_changed_and_what_is_not_named_stays(shell: Shell) -> None:
    words = ("--cron", "0 9 * * *", "--zone", "Europe/Paris", "--name", "daily")
    made = await shell.json("triggers", "add", shell.site.agent, "good morning", *words)
    wanted = ("hello", "--cron", "30 8 * * *")
    changed = await shell.json("triggers", "update", made["id"], *wanted)
    assert (changed["name"], changed["text"]) == ("daily", "hello")
    assert changed["schedule"] == {"cron": "30 8 * * *", "zone": "Europe/Paris", "missed": "once"}
    assert changed["nextDueAt"] != made["nextDueAt"]
    nothing = await shell.json("triggers", "update", made["id"], exit=2)
    hint = nothing["error"]["hint"]
    assert hint.startswith(f"dragoman triggers update {made['id']} ")
    assert hint.endswith(" '<text>'")
    wrong = (await shell.json("triggers", "update", made["id"], "--zone", "Mars", exit=1))["error"]
    assert wrong["hint"] == "dragoman triggers update --help"


@pytest.mark.parametrize("kind", ["triggers", "workflows"])
async def test_lists_come_in_pages_that_stay_what_they_are(
    shell: Shell, tmp_path: Path, kind: str
) -> None:
    async def add(name: str) -> str:
        (tmp_path / "w.json").write_text(json.dumps(definition({}) | {"name": name}))
        trigger = ("triggers", "add", shell.site.agent, "hello", "--webhook", "--name", name)
        words = trigger if kind == "triggers" else ("workflows", "create", "w.json")
        return (await shell.json(*words))["id"]

    first, second, third = [await add(name) for name in ("a", "b", "c")]
    page = await shell.json(kind, "list", "--limit", "2")
    assert [one["id"] for one in page["items"]] == [third, second]
    await add("d")
    rest = await shell.json(kind, "list", "--limit", "1", "--page-token", page["nextPageToken"])
    assert [one["id"] for one in rest["items"]] == [first]
    wrong = await shell.json(kind, "list", "--page-token", "1", exit=2)
    assert "--page-token is not one of" in wrong["error"]["message"]


async def test_disputes_and_escrows_come_in_pages_that_stay_what_they_are(shell: Shell) -> None:
    ids = [(await shell.task())["id"] for _ in range(3)]
    page = await shell.json("credits", "escrow", "--limit", "1")
    assert [one["taskId"] for one in page["items"]] == ids[:1:-1]
    await shell.json("credits", "accept", ids[2])
    token = page["nextPageToken"]
    rest = await shell.json("credits", "escrow", "--limit", "2", "--page-token", token)
    assert [one["taskId"] for one in rest["items"]] == ids[1::-1] and not rest["nextPageToken"]
    for id in ids[:2]:
        await shell.json("trust", "dispute", id, "--reason", "Nothing was done.")
    listed = ("trust", "disputes", "--gateway", shell.site.url, "--page-token")
    page = await shell.json(*listed[:-1], "--limit", "1", who="operator")
    assert [one["taskId"] for one in page["items"]] == ids[:1]
    await shell.json("trust", "resolve", ids[0], "rejected", *listed[2:4], who="operator")
    rest = await shell.json(*listed, page["nextPageToken"], who="operator")
    assert [one["taskId"] for one in rest["items"]] == [ids[1]] and not rest["nextPageToken"]
    for words in (("credits", "escrow", "--page-token"), listed):
        wrong = await shell.json(*words, "x", exit=2, who="operator")
        assert "--page-token is not one of" in wrong["error"]["message"]


async def test_credits_are_bought_at_the_address_that_is_printed(shell: Shell) -> None:
    offers = await shell.json("credits", "packages")
    names = [one["package"] for one in offers["items"]]
    assert names == ["starter", "pro", "enterprise"]
    assert offers["items"][0]["price"] == "10.00 USD"
    would = await shell.json("credits", "buy", "starter", "--dry-run")
    assert (would["result"], would["credits"]) == ("would be bought", "1000.00")
    bought = await shell.type("credits", "buy", "starter", "-o", "json")
    found = document(bought)
    assert found["payAt"].endswith(found["checkout"]) and found["payAt"].startswith("https://")
    assert fields(bought.stderr)["Hint"] == "dragoman credits balance"
    # Nothing is credited before it is paid; then it is, once.
    before = await shell.json("credits", "balance")
    served = gateway_of(shell.site.app)
    provider = served.ledger._provider
    checkout = await served.store.accounting.ledger.checkout(found["checkout"])
    assert before["total"] == "1000.00" and provider is not None and checkout is not None
    body, headers = provider.webhook(checkout)
    for _ in range(2):
        headers |= {"content-type": "application/json"}
        told = await shell.site.http.post("/api/v1/billing/webhook", content=body, headers=headers)
        assert told.status_code == 200, told.text
    assert (await shell.json("credits", "balance"))["total"] == "2000.00"
    wrong = (await shell.json("credits", "buy", "gold", exit=1))["error"]
    assert wrong["code"] == "InvalidParamsError" and wrong["hint"] == "dragoman credits packages"
    dry = await shell.type("credits", "buy", "gold", "--dry-run")
    assert dry.returncode == 2 and "starter, pro, enterprise" in dry.stderr


@pytest.mark.parametrize(("outcome", "state"), [("upheld", "refunded"), ("rejected", "resolved")])
async def test_a_dispute_is_decided_by_an_operator_from_afar(
    shell: Shell, outcome: str, state: str
) -> None:
    task = await shell.task()
    id, at = task["id"], ("--gateway", shell.site.url)
    missing = await shell.type("trust", "dispute", id)
    assert missing.returncode == 2 and "--reason" in missing.stderr
    said = await shell.json("trust", "dispute", id, "--reason", "Nothing was done.")
    assert said["result"] == "disputed"
    denied = (await shell.json("trust", "disputes", *at, exit=4))["error"]
    assert denied["code"] == "A2ACLI_ERR_AUTH_FAILED"
    assert "dragoman:operator" in denied["message"] and "A2ACLI_BEARER=" in denied["hint"]
    listed = await shell.type("trust", "disputes", *at, who="operator")
    assert fields(listed.stdout)["Reason"] == "Nothing was done."
    hint = fields(listed.stderr)["Hint"]
    assert hint == f"dragoman trust resolve {id} upheld --gateway {shell.site.url}"
    words = shlex.split(hint.replace("upheld", outcome))[1:]
    decided = await shell.json(*words, who="operator")
    assert decided == {
        "result": outcome,
        "taskId": id,
        "taskNumber": task["number"],
        "escrow": state,
    }
    again = (await shell.json(*words, who="operator", exit=1))["error"]
    assert again["code"] == "DRAGOMAN_ERR_NOT_FOUND"
    assert again["hint"] == f"dragoman trust disputes --gateway {shell.site.url}"
    assert (await shell.json("trust", "disputes", *at, who="operator"))["items"] == []


async def test_a_variable_does_not_turn_a_decision_away_from_its_file(
    shell: Shell, tmp_path: Path
) -> None:
    task = await shell.task()
    await shell.json("trust", "dispute", task["id"], "--reason", "no")
    # The variable of the gateway is set, and the token is the buyer's.
    store = ("--store", str(tmp_path / "gateway.db"))
    words = ("trust", "resolve", task["id"], "upheld", *store, "--audit", "off")
    decided = document(await shell.process(*words))
    assert decided["result"] == "upheld" and "escrow" not in decided
    both = await shell.type("trust", "disputes", *store, "--gateway", shell.site.url)
    assert both.returncode == 2 and "give one" in both.stderr


async def test_how_an_agent_stands_is_the_same_from_afar_and_in_the_file(
    shell: Shell, tmp_path: Path
) -> None:
    task = await shell.task()
    await shell.json("trust", "rate", task["id"], "4")
    afar, file = ("--gateway", shell.site.url), ("--store", str(tmp_path / "gateway.db"))
    for verb in ("show", "explain"):
        told = await shell.json("trust", verb, "echo", *afar)
        here = document(await shell.process("trust", verb, "echo", *file))
        assert told.keys() == here.keys()
        # The score itself depends on the time.
        for name in ("agentId", "agentName", "taskStats", "ratingStats"):
            assert told[name] == here[name]
        assert told["ratingStats"]["count"] == 1
    missing = (await shell.json("trust", "show", "nobody", *afar, exit=1))["error"]
    assert missing["code"] == "DRAGOMAN_ERR_AGENT_NOT_FOUND"
    assert missing["hint"] == f"dragoman agents list --gateway {shell.site.url}"


async def test_a_seller_gives_back(shell: Shell) -> None:
    task = await shell.task()
    would = await shell.json("credits", "refund", task["id"], "--dry-run", who="seller")
    assert would["result"] == "would be given back"
    none = (await shell.json("credits", "refund", task["id"], exit=1))["error"]
    assert none["code"] == "TaskNotFoundError" and none["hint"] == "dragoman credits escrow"
    given = await shell.json("credits", "refund", task["id"], who="seller")
    assert given == {"result": "given back", "taskId": task["id"], "amount": "10.00"}


async def test_an_id_that_two_requesters_chose_takes_a_number(shell: Shell) -> None:
    for who in ("buyer", "operator"):
        said = {"role": "user", "parts": [{"type": "text", "text": who}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/send"}
        body["params"] = {"id": "T", "message": said}
        done = await shell.site.http.post("/a2a/echo", json=body, headers=headers_of(who))
        assert done.json()["result"]["status"]["state"] == "completed", done.text
    refused = (await shell.json("credits", "refund", "T", who="seller", exit=1))["error"]
    numbers = re.findall(r"\d+", refused["message"])
    assert len(numbers) == 2 and "say which by --number" in refused["message"]
    words = shlex.split(refused["hint"])
    assert words[:4] == ["dragoman", "credits", "refund", "T"]
    assert words[-2:] == ["--number", numbers[0]]
    # The hint works as it is.
    given = document(await shell.type(*words[1:], who="seller"))
    assert given["result"] == "given back"
    kept = await shell.json("credits", "escrow", who="seller")
    assert [str(one["taskNumber"]) for one in kept["items"]] == [numbers[1]]
    # Its own requester needs none.
    assert (await shell.json("trust", "rate", "T", "3"))["result"] == "rated"


# Workflows


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Shell]:
    """At a gateway whose agent is free."""
    async with owners(tmp_path) as (site, _, _):
        yield Shell(site, tmp_path)


def definition(*inputs: dict[str, Any]) -> dict[str, Any]:
    """Return a workflow whose steps follow one another."""
    steps = [
        {"name": f"step {n}", "agentId": "echo", "input": one, "dependsOn": [n - 1] if n else []}
        for n, one in enumerate(inputs)
    ]
    return {"name": "Chain", "description": "One after the other.", "steps": steps}


async def test_a_workflow_is_created_run_and_shown(desk: Shell, tmp_path: Path) -> None:
    (tmp_path / "chain.json").write_text(json.dumps(definition({"n": 1}, {"n": 2})))
    would = await desk.json("workflows", "create", "chain.json", "--dry-run")
    assert would["result"] == "would be created"
    assert (await desk.json("workflows", "list"))["items"] == []
    created = await desk.type("workflows", "create", "chain.json", "-o", "json")
    id = document(created)["id"]
    hint = fields(created.stderr)["Hint"]
    assert hint == f"dragoman workflows run {id}"
    assert [one["id"] for one in (await desk.json("workflows", "list"))["items"]] == [id]
    ended = await desk.process(*shlex.split(hint)[1:], "--poll-interval", "100ms")
    run = document(ended)
    assert run["status"] == "completed" and len(run["steps"]) == 2
    assert [step["status"] for step in run["steps"]] == ["completed", "completed"]
    assert f"Waiting: run {run['id']} of workflow {id}" in ended.stderr
    assert "Progress: step 1: completed" in ended.stderr
    shown = await desk.json("workflows", "show", id)
    assert [one["id"] for one in shown["runs"]] == [run["id"]]
    assert await desk.json("workflows", "show", id, run["id"]) == run
    text = (await desk.type("workflows", "show", id, run["id"])).stdout
    assert "Status: completed\n" in text and "Step: 1 step 1 completed task " in text
    told = (await desk.type("workflows", "show", id)).stdout
    assert "Step: 1 step 1 by echo after 0\n" in told and f"Run: {run['id']} completed" in told
    # It is the buyer's: to others it is not there.
    other = await desk.type("workflows", "show", id, "-o", "json", who="seller")
    assert document(other, 1)["error"]["code"] == "DRAGOMAN_ERR_NOT_FOUND"
    assert document(other, 1)["error"]["hint"] == "dragoman workflows list"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{}", "name"),
        ('{"name": "Chain", "steps": 5}', "steps"),
        ('{"name": "Chain", "steps": ["step"]}', "steps[0]"),
        (
            '{"name": "Chain", "steps": [{"name": "a", "agentId": "b", "dependsOn": 1}]}',
            "dependsOn",
        ),
    ],
)
async def test_what_would_not_be_created_is_not_said_to_be(
    desk: Shell, text: str, place: str
) -> None:
    told = await desk.json("workflows", "create", text, "--dry-run", exit=1)
    assert told["error"]["code"] == "InvalidParamsError" and place in told["error"]["message"]


async def test_how_a_run_ended_is_no_exit_code(desk: Shell) -> None:
    text = json.dumps(definition({"do": "fail"}, {"n": 2}))
    id = (await desk.json("workflows", "create", text))["id"]
    quick = ("--poll-interval", "100ms")
    ended = await desk.process("workflows", "run", id, *quick)
    run = document(ended)
    assert run["status"] == "failed" and f"Warning: run {run['id']} ended failed" in ended.stderr
    streamed = await desk.process("workflows", "run", id, "--stream", *quick)
    seen = lines(streamed)
    assert seen[-1]["status"] == "failed" and len({one["id"] for one in seen}) == 1


async def test_a_run_outlives_the_command_that_began_it(desk: Shell) -> None:
    id = (await desk.json("workflows", "create", json.dumps(definition({"do": "wait"}))))["id"]
    words = ("workflows", "run", id)
    begun = await desk.type(*words, "--async", "-o", "json")
    run = document(begun)["id"]
    assert fields(begun.stderr)["Hint"] == f"dragoman workflows show {id} {run}"
    late = document(await desk.process(*words, "--timeout", "5s", "--poll-interval", "100ms"), 5)
    error = late["error"]
    assert error["code"] == "A2ACLI_ERR_TIMEOUT"
    other = shlex.split(error["hint"])[-1]
    assert error["hint"] == f"dragoman workflows show {id} {other}" and other != run
    for one in (run, other):
        canceled = await desk.json("workflows", "cancel", id, one)
        assert canceled["status"] == "cancelled"
    both = await desk.type(*words, "--async", "--wait")
    assert both.returncode == 2


async def test_an_interrupt_leaves_the_run_and_says_how_to_look_at_it(
    desk: Shell, tmp_path: Path
) -> None:
    id = (await desk.json("workflows", "create", json.dumps(definition({"do": "wait"}))))["id"]
    given = {"DRAGOMAN_GATEWAY": desk.site.url, "A2ACLI_BEARER": TOKENS["buyer"]}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman", "workflows", "run", id),
        cwd=tmp_path,
        env=environment(tmp_path) | home(tmp_path) | given,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        # Its first step is under way: it is polled, and takes signals.
        waiting, progress = [await within(process.stderr.readline()) for _ in range(2)]
        assert waiting.startswith(b"Waiting: run ") and progress.startswith(b"Progress: step 0")
        process.send_signal(signal.SIGINT)
        _, told = await within(process.communicate())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    run = waiting.split()[2].decode()
    assert process.returncode == 130 and "Message: interrupted" in told.decode()
    assert f"Hint: dragoman workflows show {id} {run}\n" in told.decode()
    assert (await desk.json("workflows", "show", id, run))["status"] == "running"
    await desk.json("workflows", "cancel", id, run)


@pytest.mark.parametrize(
    ("source", "exit", "said"),
    [
        ("none.json", 2, "none.json"),
        ("[]", 2, "JSON object"),
        ("{", 2, "is not JSON"),
        ('{"name": "x", "steps": []}', 1, "steps"),
        ('{"name": "x", "steps": [{"name": "a", "agentId": "nobody"}]}', 1, "no such agent"),
    ],
)
async def test_what_is_no_workflow_creates_nothing(
    desk: Shell, source: str, exit: int, said: str
) -> None:
    ended = await desk.type("workflows", "create", source, "-o", "json")
    assert said in document(ended, exit)["error"]["message"]
    assert (await desk.json("workflows", "list"))["items"] == []


async def test_a_gateway_that_knows_no_callers_has_all_of_it(tmp_path: Path) -> None:
    async with gateway(tmp_path, price=10, escrow=HOURS) as site:
        shell = Shell(site, tmp_path)
        task = await site.make()
        await site.done(task["id"])
        await shell.json("trust", "dispute", task["id"], "--reason", "no")
        at = ("--gateway", site.url)
        decided = await shell.json("trust", "resolve", task["id"], "upheld", *at)
        assert decided["result"] == "upheld"
        assert (await shell.json("credits", "balance"))["total"] == "1000.00"


async def test_what_is_no_gateway_is_told_apart(tmp_path: Path) -> None:
    async with gateway(tmp_path) as site:
        shell = Shell(site, tmp_path)
        gone = await shell.type("credits", "balance", DRAGOMAN_GATEWAY="http://127.0.0.1:9")
        assert gone.returncode == 3 and "Hint: dragoman up" in gone.stderr
        upstream = await shell.type("credits", "balance", "--gateway", site.agent_url)
        assert upstream.returncode == 1 and "a gateway?" in upstream.stderr
