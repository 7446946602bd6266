"""Bindings: which interface of a card is spoken to, as what tenant, and that none is the lesser."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness.processes import ROOT, running

from dragoman.testing.scripted.agent import ScriptedAgent, SeenRequest
from tests.cli.requirements.desk import Desk, Ended, sitting, together

GRPC_AGENT = ROOT / "tests" / "harness" / "grpc_agent.py"
RPC, REST, GRPC = "JSONRPC", "HTTP+JSON", "GRPC"
DONE = "State: TASK_STATE_COMPLETED"


def permuted(desk: Desk, *bindings: str) -> str:
    """Write the agent's card with its interfaces of 1.0 in this order; return the reference."""
    card = desk.json("card", "get")
    faces = {one["protocolBinding"]: one for one in card["supportedInterfaces"][:2]}
    assert {one["protocolVersion"] for one in faces.values()} == {"1.0"}
    faces[GRPC] = {"url": "127.0.0.1:9", "protocolBinding": GRPC, "protocolVersion": "1.0"}
    card["supportedInterfaces"] = [faces[name] for name in bindings]
    path = desk.folder / f"{'-'.join(bindings).replace('+', '')}.json"
    path.write_text(json.dumps(card))
    return str(path)


def spoken(desk: Desk, text: str) -> list[str]:
    """Return the bindings over which a text was sent."""
    sent = [seen for seen in desk.seen() if seen.method.startswith("Send")]
    return [seen.binding for seen in sent if text.encode() in seen.body]


@pytest.mark.cli("A2ACLI_TX_001")
def test_the_first_interface_of_the_card_that_we_speak_is_used(desk: Desk) -> None:
    orders = [(RPC, REST), (REST, RPC), (GRPC, REST, RPC), (REST,), (RPC,)]
    refs = [permuted(desk, *order) for order in orders]
    together(*(lambda r=ref: desk.run("send", f"first {r}", a=r) for ref in refs))
    chosen = [spoken(desk, f"first {ref}") for ref in refs]
    assert chosen == [[RPC], [REST], [REST], [REST], [RPC]]
    none = desk.run("send", "hi", "-o", "json", a=permuted(desk, GRPC), exit=3)
    assert none.error["code"] == "A2ACLI_ERR_UNREACHABLE"


@pytest.mark.cli("A2ACLI_TX_002")
def test_a_preferred_binding_comes_first_and_without_it_the_order_of_the_card(desk: Desk) -> None:
    both = permuted(desk, RPC, REST)
    rows: list[tuple[str, list[str], dict[str, str], str, str]] = [
        ("a", ["rest"], {}, both, REST),
        ("b", ["HTTP+json"], {}, both, REST),
        ("c", ["grpc", "rest", "jsonrpc"], {}, both, REST),
        ("d", ["grpc", "jsonrpc", "rest"], {}, permuted(desk, REST, RPC), RPC),
        ("e", ["grpc"], {}, permuted(desk, REST, RPC), REST),
        ("f", ["rest"], {}, permuted(desk, RPC), RPC),
        ("g", [], {"A2ACLI_TRANSPORT": "grpc, rest"}, both, REST),
        ("h", ["jsonrpc"], {"A2ACLI_TRANSPORT": "rest"}, both, RPC),
    ]

    def send(name: str, flags: list[str], env: dict[str, str], ref: str) -> Ended:
        preferred = [word for flag in flags for word in ("--transport", flag)]
        return desk.run("send", f"preferred {name}", "--debug", *preferred, env=env, a=ref)

    ended = together(*(lambda r=row: send(*r[:4]) for row in rows))
    assert [spoken(desk, f"preferred {row[0]}") for row in rows] == [[row[4]] for row in rows]
    fell_back = [row[0] for row, one in zip(rows, ended, strict=True) if "own order" in one.err]
    assert fell_back == ["e", "f"]
    unknown = desk.run("send", "hi", "--transport", "pigeon", "-o", "json", exit=2)
    assert unknown.error["code"] == "A2ACLI_ERR_USAGE"


@pytest.mark.cli("A2ACLI_TX_003", "A2ACLI_VER_001")
@pytest.mark.parametrize("binding", ["jsonrpc", "rest"])
def test_every_request_has_the_tenant_as_declared_and_the_version(
    folder: Path, binding: str
) -> None:
    # The card offers 0.3 before 1.0.
    with sitting(folder, tenant="Acme-EU_1", auth="bearer", scenarios=["old-first"]) as desk:
        env = {"A2ACLI_BEARER": "demo-secret", "A2ACLI_TRANSPORT": binding}
        with desk.slowed_by(GetTask=3, SubscribeToTask=1):
            everything(desk, env)
        seen = [one for one in desk.seen() if one.method != "card"]
        # fmt: off
        assert {one.method for one in seen} == {
            "SendStreamingMessage", "SendMessage", "GetTask", "ListTasks", "CancelTask",
            "SubscribeToTask", "CreateTaskPushNotificationConfig", "GetTaskPushNotificationConfig",
            "ListTaskPushNotificationConfigs", "DeleteTaskPushNotificationConfig",
            "GetExtendedAgentCard",
        }
        # fmt: on
        assert [one.method for one in seen].count("GetTask") > 2
        assert {one.binding for one in seen} == {RPC if binding == "jsonrpc" else REST}
        assert {tenant_of(one) for one in seen} == {"Acme-EU_1"}
        assert desk.seen("card")
        assert {one.headers.get("a2a-version") for one in desk.seen()} == {"1.0"}


def everything(desk: Desk, env: dict[str, str]) -> None:
    """Use every operation once, polls included."""
    started = desk.json("send", "slow 1", "--async", env=env)["task"]["id"]
    hangs = desk.json("send", "working", "--async", env=env)["task"]["id"]
    push = ("task", "push-config")
    config = desk.json(*push, "create", hangs, "--url", "http://127.0.0.1:9/", env=env)["id"]
    together(
        lambda: desk.run("task", "get", started, "--wait", "--poll-interval", "100ms", env=env),
        lambda: desk.run("send", "echo hi", env=env),
        lambda: desk.run("task", "subscribe", started, env=env),
        lambda: desk.run("task", "list", env=env),
        lambda: desk.run(*push, "get", hangs, config, env=env),
        lambda: desk.run(*push, "list", hangs, env=env),
        lambda: desk.run("card", "get", "--extended", env=env),
    )
    together(
        lambda: desk.run(*push, "delete", hangs, config, env=env),
        lambda: desk.run("task", "cancel", hangs, env=env),
    )


def tenant_of(seen: SeenRequest) -> str | None:
    """Return the tenant a request names, as it stands on the wire."""
    if seen.binding == RPC:
        return seen.json["params"].get("tenant")
    assert "tenant" not in seen.query and b'"tenant"' not in seen.body
    first = seen.path.split("/")[1]
    return None if first.partition(":")[0] in ("message", "tasks", "extendedAgentCard") else first


@pytest.mark.cli("A2ACLI_TX_003")
def test_the_tenant_is_the_one_of_the_interface_that_is_spoken_to(folder: Path) -> None:
    offers = [
        {"binding": RPC, "tenant": "one"},
        {"binding": REST, "tenant": "two"},
    ]
    with sitting(folder, ScriptedAgent({"card": {"interfaces": offers}})) as desk:
        together(
            lambda: desk.run("task", "list"),
            lambda: desk.run("task", "list", "--transport", "rest"),
        )
        found = {one.binding: tenant_of(one) for one in desk.seen("ListTasks")}
        assert found == {RPC: "one", REST: "two"}
        assert desk.run("send", "hi", "--tenant", "mine", exit=2).out == ""


@pytest.mark.cli("A2ACLI_TX_004", "A2ACLI_TX_003")
def test_every_command_does_the_same_on_either_binding_and_names_no_tenant_without_one(
    desk: Desk,
) -> None:
    def walk(binding: str) -> list[Any]:
        env = {"A2ACLI_TRANSPORT": binding, "A2ACLI_OUTPUT": "json"}

        def run(*words: str, exit: int = 0, stream: bool = False) -> Any:
            ended = desk.run(*words, env=env, exit=exit)
            return ended.lines if stream else ended.json

        context = f"of-{binding}"
        answer = run("send", "parts", "--context-id", context)
        events = run("send", "stream 2", "--stream", "--context-id", context, stream=True)
        task = run("send", "ask", "--context-id", context)["task"]
        followed = run("task", "subscribe", task["id"], "--stream", stream=True)
        push = ("task", "push-config")
        made = run(*push, "create", task["id"], "--url", "http://127.0.0.1:9/", "--id", "c")
        return [
            *(answer, events, task, followed, made),
            run("task", "get", task["id"]),
            run("task", "list", "--context-id", context),
            run(*push, "get", task["id"], "c"),
            run(*push, "list", task["id"]),
            run(*push, "delete", task["id"], "c"),
            run("task", "cancel", task["id"]),
            run("task", "cancel", answer["task"]["id"], exit=1)["error"] | {"a2aCode": ""},
            run("task", "get", "unknown", exit=1)["error"] | {"a2aCode": ""},
        ]

    before = len(desk.agent.requests)
    rpc, rest = together(lambda: walk("jsonrpc"), lambda: walk("rest"))
    for one, other in zip(rpc, rest, strict=True):
        assert alike(one) == alike(other)
    seen = [one for one in desk.agent.requests[before:] if one.method != "card"]
    counts = [[one.method for one in seen if one.binding == name] for name in (RPC, REST)]
    assert sorted(counts[0]) == sorted(counts[1]) and len(counts[0]) >= 13
    assert {tenant_of(one) for one in seen} == {None}


@pytest.mark.cli("A2ACLI_TX_005")
def test_every_command_does_the_same_over_grpc(tmp_path: Path) -> None:
    options = ("--listen", "127.0.0.1:0", "--store", "memory:", "--allow-private")
    with (
        running("serve", GRPC_AGENT, *options, cwd=tmp_path) as server,
        sitting(tmp_path) as desk,
    ):
        url = server.ready()

        def walk(binding: str) -> list[Any]:
            env = {"A2ACLI_TRANSPORT": binding, "A2ACLI_OUTPUT": "json"}

            def run(*words: str, exit: int = 0, stream: bool = False) -> Any:
                ended = desk.run(*words, env=env, exit=exit, a=url)
                return ended.lines if stream else ended.json

            context = f"of-{binding}"
            answer = run("send", "hello", "--context-id", context)
            events = run("send", "count 2", "--stream", "--context-id", context, stream=True)
            task = run("send", "ask", "--context-id", context)["task"]
            push = ("task", "push-config")
            made = run(*push, "create", task["id"], "--url", "http://127.0.0.1:9/", "--id", "c")
            return [
                *(answer, events, task, made),
                run("task", "get", task["id"]),
                run("task", "list", "--context-id", context),
                run(*push, "get", task["id"], "c"),
                run(*push, "list", task["id"]),
                run(*push, "delete", task["id"], "c"),
                run("send", "that one", "--task-id", task["id"]),
                run("task", "cancel", answer["task"]["id"], exit=1)["error"] | {"a2aCode": ""},
                run("task", "get", "unknown", exit=1)["error"] | {"a2aCode": ""},
                run("card", "get", "--extended", exit=1)["error"] | {"a2aCode": ""},
            ]

        rpc, grpc = together(lambda: walk("jsonrpc"), lambda: walk("grpc"))
        for one, other in zip(rpc, grpc, strict=True):
            assert alike(one) == alike(other)
        spoken_to = desk.run("send", "hello", "--transport", "grpc", "--debug", a=url)
        assert "selected GRPC 1.0" in spoken_to.err


# What differs between two tasks that went the same way.
_OWN = ("id", "artifactId", "taskId", "contextId", "messageId", "timestamp", "message", "hint")


def alike(value: Any) -> Any:
    """Return a document without what is another's in every run."""
    if isinstance(value, dict):
        return {
            name: type(item).__name__ if name in _OWN and isinstance(item, str) else alike(item)
            for name, item in value.items()
        }
    return [alike(item) for item in value] if isinstance(value, list) else value
