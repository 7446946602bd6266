"""The text floor: labels, blocks and escapes; and JSON in the shapes of 1.0."""

import json
from collections.abc import Callable

import pytest

from dragoman.cli.failures import Failure
from dragoman.cli.output import Output, bare, escaped, joined, one_line, stream_response
from dragoman.cli.redaction import NextCommand, Redactor
from dragoman.cli.sources import CommandSettings
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.task import Task, TaskState, TaskStatus

Captured = pytest.CaptureFixture[bytes]
TASK, CONTEXT = TaskId("t-1"), ContextId("c-1")
WORKING = TaskStatus(TaskState.WORKING)


def output(redactor: Redactor | None = None, **settings: object) -> Output:
    return Output(CommandSettings(**settings), redactor or Redactor())  # type: ignore[arg-type]  # fields


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain äöü 日本", "plain äöü 日本"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\tb\nc", "a\tb\nc"),
        ("a\rb\x00\x7f\x9b", "a\\x0db\\x00\\x7f\\x9b"),
        ("\u202eevil\u2066\u200f", "\\u202eevil\\u2066\\u200f"),
        ("a\u2028b\u2029c\u061c\ud800", "a\\u2028b\\u2029c\\u061c\\ud800"),
    ],
)
def test_what_agents_say_moves_no_cursor(text: str, shown: str) -> None:
    assert escaped(text) == shown
    assert "\n" not in one_line(text)


def shown(capture: Captured, write: Callable[[Output], None], **settings: object) -> str:
    write(output(**settings))
    return capture.readouterr().out.decode()


# What a terminal obeys, in any place of a line.
OBEYED = [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F)]
OBEYED += [*range(0x2066, 0x206A), 0xD800, 0xDFFF]


@pytest.mark.parametrize("stream", [False, True], ids=["document", "line"])
@pytest.mark.parametrize("number", OBEYED, ids=hex)
def test_json_has_nothing_that_a_terminal_obeys_and_means_the_same(
    number: int, stream: bool, capsysbinary: Captured
) -> None:
    said = {f"a{chr(number)}": f"{chr(number)}b"}
    text = shown(capsysbinary, lambda out: out.json(said), output="json", stream=stream)
    assert json.loads(text) == said
    assert chr(number) not in text.replace("\n", "" if number == 10 else "\n")
    failure = Failure("A2ACLI_ERR_INTERNAL", f"it said {chr(number)}")
    text = shown(capsysbinary, lambda out: out.fail(failure), output="json", stream=stream)
    assert json.loads(text)["error"]["message"] == failure.message
    assert chr(number) not in text.replace("\n", "" if number == 10 else "\n")


@pytest.mark.parametrize("number", OBEYED, ids=hex)
def test_no_text_has_what_a_terminal_obeys(number: int, capsysbinary: Captured) -> None:
    if number in (9, 10):
        return
    out, said = output(), f"a{chr(number)}b"
    out.field(said, said)
    out.block("Text", said)
    out.note("Warning", said)
    out.fail(Failure("A2ACLI_ERR_INTERNAL", said, hint=said))
    out.task(Task(TASK, CONTEXT, WORKING, artifacts=[Artifact(said, [Part(text=said)], name=said)]))
    captured = capsysbinary.readouterr()
    written = (captured.out + captured.err).decode()
    assert chr(number) not in written


def test_an_empty_line_does_not_end_a_block(capsysbinary: Captured) -> None:
    text = shown(capsysbinary, lambda out: out.block("Text", "a\n\nb\n"))
    assert text == "Text:\na\n \nb\n \n\n"


def test_a_task_is_ids_and_state_and_every_kind_of_part(capsysbinary: Captured) -> None:
    parts = [
        Part(text="hello"),
        Part(data={"n": 1}),
        Part(raw=b"12345", filename="report.pdf", media_type="application/pdf"),
        Part(url="https://example.com/x", media_type="text/html"),
    ]
    said = Message(MessageId("m-1"), Role.AGENT, [Part(text="done")])
    status = TaskStatus(TaskState.COMPLETED, said, "2026-01-31T12:00:00Z")
    task = Task(TASK, CONTEXT, status, [Artifact("a-1", parts, "result\n")])
    assert shown(capsysbinary, lambda out: out.task(task)).splitlines() == [
        "Task: t-1",
        "Context: c-1",
        "State: TASK_STATE_COMPLETED",
        "Updated: 2026-01-31T12:00:00Z",
        "Message: m-1 (ROLE_AGENT)",
        "Text:",
        "done",
        "",
        "Artifact: a-1 (result\\n)",
        "Text:",
        "hello",
        "",
        "Data:",
        "{",
        '  "n": 1',
        "}",
        "",
        "File: report.pdf (application/pdf, 5 bytes)",
        "File: https://example.com/x (text/html)",
    ]


def test_history_and_metadata_are_shown_to_who_wants_more(capsysbinary: Captured) -> None:
    asked = Message(MessageId("m-0"), Role.USER, [Part(text="question")], metadata={"k": "v"})
    task = Task(TASK, CONTEXT, WORKING, history=[asked], metadata={"deep": True})
    concise = shown(capsysbinary, lambda out: out.task(task))
    verbose = shown(capsysbinary, lambda out: out.task(task), verbose=True)
    assert "question" not in concise and "deep" not in concise
    assert "question" in verbose and '"deep": true' in verbose and '"k": "v"' in verbose


def chunk(text: str, id: str = "a-1") -> ArtifactUpdate:
    return ArtifactUpdate(TASK, CONTEXT, Artifact(id, [Part(text=text)], "story"), append=True)


def test_chunks_of_a_text_are_one_block_as_they_come(capsysbinary: Captured) -> None:
    out = output(stream=True)
    seen: list[str] = []
    for event in (chunk("Once "), chunk("upon\n"), chunk("\na time"), chunk("other", "a-2")):
        out.event(event)
        seen.append(capsysbinary.readouterr().out.decode())
    assert seen[:3] == ["Artifact: a-1 (story)\nText:\nOnce ", "upon\n", " \na time"]
    assert seen[3] == "\n\nArtifact: a-2 (story)\nText:\nother"
    out.event(StatusUpdate(TASK, CONTEXT, TaskStatus(TaskState.COMPLETED)))
    last = capsysbinary.readouterr().out.decode()
    assert last == "\n\nTask: t-1\nContext: c-1\nState: TASK_STATE_COMPLETED\n"


def test_neighbouring_chunks_are_joined_and_files_are_not() -> None:
    parts = [
        Part(text="a"),
        Part(text="b"),
        Part(data=1),
        Part(text="c"),
        Part(text="d", filename="f"),
    ]
    assert [part.text for part in joined(parts) if isinstance(part.text, str)] == ["ab", "c", "d"]


def test_json_is_one_indented_document_or_compact_lines(capsysbinary: Captured) -> None:
    task = Task(TASK, CONTEXT, WORKING, extra={"unknown": 1})
    document = shown(capsysbinary, lambda out: out.json(bare(task)), output="json")
    assert document.startswith('{\n  "id": "t-1"') and document.endswith("}\n")
    line = shown(capsysbinary, lambda out: out.event(task), output="json", stream=True)
    assert line.count("\n") == 1 and json.loads(line) == json.loads(stream_response(task))
    assert set(json.loads(line)["task"]) == {"id", "contextId", "status"}


def test_half_a_character_does_not_end_the_run(capsysbinary: Captured) -> None:
    assert shown(capsysbinary, lambda out: out.field("Text", "\ud83d!")) == "Text: \\ud83d!\n"


def test_a_failure_is_told_in_either_format_without_secrets(capsysbinary: Captured) -> None:
    redactor = Redactor()
    redactor.add("hunter22")
    failure = Failure("A2ACLI_ERR_INTERNAL", "hunter22\nis out", hint="try hunter22", a2a_code=-1)
    output(redactor).fail(failure)
    captured = capsysbinary.readouterr()
    assert captured.out == b""
    assert captured.err.decode().splitlines() == [
        "Error: A2ACLI_ERR_INTERNAL",
        "Message: <redacted>\\nis out",
        "Hint: try <redacted>",
        "A2A-Code: -1",
    ]
    output(redactor, output="json", stream=True).fail(failure)
    captured = capsysbinary.readouterr()
    assert captured.err == b"" and captured.out.count(b"\n") == 1
    assert json.loads(captured.out)["error"] == {
        "code": "A2ACLI_ERR_INTERNAL",
        "message": "<redacted>\nis out",
        "hint": "try <redacted>",
        "a2aCode": -1,
    }


def test_a_command_that_we_made_is_told_as_it_is(capsysbinary: Captured) -> None:
    redactor = Redactor()
    redactor.add("hunter22")
    line = NextCommand("dragoman task get -a hunter22.example")
    output(redactor).fail(Failure("A2ACLI_ERR_TIMEOUT", "late", hint=line))
    output(redactor).note("Resume", line)
    said = capsysbinary.readouterr().err.decode().splitlines()
    assert said[-2:] == [f"Hint: {line}", f"Resume: {line}"]


def test_a_state_that_is_not_known_is_shown_as_it_was_received() -> None:
    from dragoman.cli.output import bare, stream_response
    from dragoman.dialects.v1_0 import V1_0

    received = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_UNSPECIFIED"}}
    task = V1_0.decode_event({"task": received})
    assert json.loads(stream_response(task)) == {"task": received}  # type: ignore[arg-type]
    assert json.loads(bare(task)) == received  # type: ignore[arg-type]
    update = {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_PAUSED"}}
    event = V1_0.decode_event({"statusUpdate": update})
    assert json.loads(stream_response(event)) == {"statusUpdate": update}  # type: ignore[arg-type]
