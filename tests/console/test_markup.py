"""What strangers say, made safe: the rules by values, without a browser."""

from pathlib import Path

import pytest

from dragoman.console import markup, rendering
from dragoman.console.charts import chart
from dragoman.console.content import conversation, from_events
from dragoman.console.dialect_views import grpc_view
from dragoman.console.markup import (
    MAX_SHOWN,
    difference,
    json_text,
    line,
    markdown,
    size,
    ticked,
    visible,
)
from dragoman.console.pages import attention, overview
from dragoman.console.rendering import render, seconds, setting, short
from dragoman.console.timeline import draw, transition_lines
from tests.console.payloads import PAYLOADS


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_markdown_keeps_words_and_nothing_that_acts(payload: str) -> None:
    shown = str(markdown(payload)).lower()
    for banned in ("<script", "<img", "<svg", "<iframe", "<style", "<form", "<input", "<base"):
        assert banned not in shown
    assert 'href="javascript' not in shown and 'href="data' not in shown


def test_what_is_not_done_is_still_to_be_read() -> None:
    assert "a picture" in str(markdown("![a picture](https://evil.example/track.png)"))
    assert "&lt;u&gt;" in str(markdown("<u>underlined</u>"))


def test_parts_of_pages_hold_no_token_of_a_session() -> None:
    # They are drawn once for all who look at the same.
    folder = Path(rendering.__file__).parent / "templates" / "live"
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert texts and not [name for name, text in texts.items() if "token" in text]


def test_links_tell_nothing_of_the_page_they_are_on() -> None:
    shown = str(markdown("[a](https://example.org)"))
    assert 'rel="noopener noreferrer nofollow"' in shown


def test_headings_of_a_message_are_below_those_of_the_page() -> None:
    assert "<h3>" in str(markdown("# Big")) and "<h1>" not in str(markdown("# Big"))


def test_what_hides_or_reorders_is_shown_by_its_number() -> None:
    assert visible("a\u202eb\x1b[2Jc\td\n") == "a⟨202E⟩b⟨001B⟩[2Jc\td\n"


def test_a_long_text_is_cut_and_says_so() -> None:
    shown = str(markdown("x" * 200_000))
    assert len(shown) < 70_000 and "134,464 more characters" in shown
    assert "more characters" in str(json_text({"a": "x" * 200_000}))


def test_a_huge_text_costs_no_more_than_what_is_shown_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A character beyond ASCII makes it slow to look through: a stranger would hold up everything.
    text = "\u202e" + "x" * 1_000_000
    looked: list[int] = []

    def counted(text: str) -> str:
        looked.append(len(text))
        return text

    monkeypatch.setattr(markup, "visible", counted)
    for shown in (markdown(text), json_text({"a": text}), difference({}, {"a": text})):
        assert "more characters" in shown
    assert max(looked) <= MAX_SHOWN


def test_json_is_escaped() -> None:
    assert "<script>" not in str(json_text({"<script>": "</pre><script>"}))


def test_a_difference_shows_what_came_and_what_went_whatever_the_order() -> None:
    assert "Nothing changed" in str(difference({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    shown = str(difference({"a": "<b>"}, {"a": "<i>"}))
    assert 'class="removed"' in shown and "&lt;i&gt;" in shown and "<i>" not in shown


def test_chunks_of_a_result_are_one_text() -> None:
    parts = [{"text": "one "}, {"text": "two"}, {"data": 1}, {"text": "three"}]
    (said,) = conversation({"artifacts": [{"artifactId": "a", "parts": parts}]})
    assert [part.get("text", part.get("value")) for part in said["parts"]] == [
        "one two",
        1,
        "three",
    ]


def test_a_long_task_is_told_by_some_of_its_events() -> None:
    first = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go"}]}
    events = [
        {"event": {"task": {"id": "t", "history": [first]}}},
        {"event": {"artifactUpdate": {"artifact": {"artifactId": "a", "parts": [{"text": "1"}]}}}},
        {"event": {"artifactUpdate": {"artifact": {"artifactId": "a", "parts": [{"text": "2"}]}}}},
    ]
    said = conversation(from_events(events))
    assert [one["role"] for one in said] == ["user", "artifact"]
    assert said[1]["parts"] == [{"kind": "text", "text": "12"}]


def test_a_timeline_shows_states_steps_and_the_gap_before_a_takeover() -> None:
    def at(second: int) -> str:
        return f"2026-01-01T00:00:{second:02d}Z"

    drawing = draw(
        [
            {"position": 1, "kind": "task", "at": at(0), "state": "TASK_STATE_SUBMITTED"},
            {"position": 2, "kind": "status", "at": at(1), "state": "TASK_STATE_WORKING"},
            {"position": 3, "kind": "step", "text": "look", "seconds": 2.0, "at": at(4)},
            {"position": 4, "kind": "attempt", "at": at(9)},
            {"position": 5, "kind": "status", "at": at(10), "state": "TASK_STATE_COMPLETED"},
        ],
        [],
        is_ended=True,
    )
    assert drawing.lanes == ["state", "attempts", "steps"]
    states = [shape for shape in drawing.shapes if shape.lane == 0]
    assert [shape.title for shape in states] == [
        "queued for 1.0 s",
        "working for 9.0 s",
        "completed",
    ]
    (gap,) = (shape for shape in drawing.shapes if shape.is_gap)
    assert gap.title == "its process left within these 5.0 s; then another took over"
    assert drawing.ticks[-1][1] == "10.0 s"


def test_steps_and_calls_without_times_last_as_long_as_their_neighbours_say() -> None:
    forwarded = {"kind": "forwarded", "agent": "a1", "text": "the best"}
    drawing = draw(
        [
            {"position": 1, "kind": "task", "at": "2026-01-01T00:00:00Z"},
            {"position": 2, **forwarded},
            {"position": 3, **forwarded},
            {"position": 4, "kind": "step", "text": "one"},
            {"position": 5, "kind": "step", "text": "two"},
            {
                "position": 6,
                "kind": "status",
                "at": "2026-01-01T00:00:10Z",
                "state": "TASK_STATE_COMPLETED",
            },
        ],
        [],
        is_ended=True,
    )
    (call,) = (shape for shape in drawing.shapes if shape.title.startswith("the best"))
    one, two = (shape for shape in drawing.shapes if shape.lane == drawing.lanes.index("steps"))
    assert call.width == pytest.approx(one.width + two.width)  # pyright: ignore[reportUnknownMemberType]  # pytest's own
    assert one.x + one.width == pytest.approx(two.x)  # pyright: ignore[reportUnknownMemberType]  # pytest's own
    assert one.is_guess and two.is_guess


def test_steps_with_times_are_where_they_were_and_a_sleep_lasts_from_its_begin() -> None:
    drawing = draw(
        [
            {"position": 1, "kind": "task", "at": "2026-01-01T00:00:00Z"},
            {"position": 2, "kind": "step", "text": "a", "at": "2026-01-01T00:00:04Z"},
            {
                "position": 3,
                "kind": "sleep",
                "text": "b",
                "at": "2026-01-01T00:00:04Z",
                "seconds": 3,
            },
            {"position": 4, "kind": "attempt", "at": "2026-01-01T00:00:08Z"},
            {
                "position": 5,
                "kind": "step",
                "text": "c",
                "at": "2026-01-01T00:00:10Z",
                "seconds": 1,
            },
        ],
        [],
        is_ended=True,
    )
    lane = drawing.lanes.index("steps")
    spans = [(one.x, one.width) for one in drawing.shapes if one.lane == lane]
    whole = drawing.ticks[-1][0] - drawing.ticks[0][0]
    seconds = [
        (round(10 * (x - drawing.ticks[0][0]) / whole), round(10 * width / whole))
        for x, width in spans
    ]
    assert seconds == [(4, 0), (4, 3), (9, 1)]
    assert not any(one.is_guess for one in drawing.shapes)
    assert any(one.is_gap for one in drawing.shapes)


def test_the_lines_of_a_timeline_name_an_agent_once() -> None:
    found = [
        {"kind": "trace", "position": 1},
        {"kind": "forwarded", "agent": "7f", "position": 2},
        {"kind": "forwarded", "agent": "7f", "position": 3},
        {"kind": "forwarded", "agent": "8a", "position": 4},
        {"kind": "status", "state": "TASK_STATE_COMPLETED", "position": 5},
    ]
    shown = [(one["position"], one["agent"]) for one in transition_lines(found, {"7f": "weather"})]
    assert shown == [(2, "weather"), (4, "8a"), (5, "")]


def test_what_has_no_time_of_its_own_lies_between_the_times_of_its_neighbours() -> None:
    def at(second: float) -> str:
        return f"2026-01-01T00:00:{second:06.3f}Z"

    found = [
        {"position": 1, "kind": "task", "at": at(0), "state": "TASK_STATE_SUBMITTED"},
        {"position": 2, "kind": "turn"},
        {"position": 3, "kind": "status", "at": at(0), "state": "TASK_STATE_WORKING"},
        {"position": 4, "kind": "forwarded", "agent": "a1", "text": "the best"},
        {"position": 5, "kind": "status", "at": at(0.5), "state": "TASK_STATE_WORKING"},
        {"position": 6, "kind": "message", "text": "and fast"},
        {"position": 7, "kind": "status", "at": at(9), "state": "TASK_STATE_WORKING"},
        {"position": 8, "kind": "step", "text": "look"},
        # By the clock of another machine, which is behind.
        {"position": 9, "kind": "status", "at": at(8), "state": "TASK_STATE_WORKING"},
        {"position": 10, "kind": "turn"},
    ]
    lines = {one["position"]: one for one in transition_lines(found, {})}
    assert lines[2]["at"] == at(0)
    assert "at" not in lines[4] and lines[4]["is_about"]
    assert (lines[4]["after"], lines[4]["before"]) == (at(0), at(0.5))
    assert (lines[6]["after"], lines[6]["before"]) == (at(0.5), at(9))
    assert "at" not in lines[6] and not lines[6]["is_about"]
    assert (lines[8]["after"], lines[8]["before"]) == ("", "")
    assert (lines[10]["after"], lines[10]["before"]) == (at(8), "")
    titles = [shape.title for shape in draw(found, [], is_ended=False).shapes]
    assert "turn · after 0 ms" in titles
    assert "the best · between 0 ms and 500 ms" in titles
    assert "and fast · between 500 ms and 9.0 s" in titles
    assert "look · at a time that is not recorded" in titles
    assert "turn · later than 8.0 s" in titles
    assert found[1] == {"position": 2, "kind": "turn"}, "what the API said is not changed"


def test_chunks_without_times_are_one_bar_between_the_times_of_their_neighbours() -> None:
    def at(second: float) -> str:
        return f"2026-01-01T00:00:{second:06.3f}Z"

    found = [
        {"position": 1, "kind": "task", "at": at(0), "state": "TASK_STATE_WORKING"},
        {"position": 2, "kind": "artifact", "chunks": 4000, "text": "report"},
        {"position": 4002, "kind": "step", "text": "look", "at": at(4)},
        {"position": 4003, "kind": "artifact", "chunks": 1, "text": "map"},
        {"position": 4004, "kind": "attempt", "at": at(8)},
        {"position": 4005, "kind": "artifact", "chunks": 2},
        {"position": 4007, "kind": "status", "at": at(10), "state": "TASK_STATE_COMPLETED"},
        {"position": 4008, "kind": "artifact", "chunks": 1, "text": "late"},
    ]
    drawing = draw(found, [], is_ended=True)
    lane = drawing.lanes.index("artifacts")
    made = [shape for shape in drawing.shapes if shape.lane == lane]
    assert [one.title for one in made] == [
        "4,000 chunks, the first of report · between 0 ms and 4.0 s",
        "map · between 4.0 s and 8.0 s",
        "2 chunks of artifacts · between 8.0 s and 10.0 s",
        "late · later than 10.0 s",
    ]
    assert all(one.is_guess for one in made)
    first, whole = drawing.ticks[0][0], drawing.ticks[-1][0] - drawing.ticks[0][0]
    spans = [(round(10 * (one.x - first) / whole), round(10 * one.width / whole)) for one in made]
    # A single one is a mark in the middle of what is known.
    assert spans == [(0, 4), (6, 0), (8, 2), (10, 0)]
    # When the map was made is not known: its process may have left right after the step.
    (gap,) = (shape for shape in drawing.shapes if shape.is_gap)
    assert gap.title.startswith("its process left within these 4.0 s;")
    lines = [one["text"] for one in transition_lines(found, {}) if one["kind"] == "artifact"]
    assert lines == [one.title.partition(" · ")[0] for one in made]


def test_chunks_between_clocks_that_disagree_are_one_mark() -> None:
    found = [
        {"position": 1, "kind": "task", "at": "2026-01-01T00:00:09Z"},
        {"position": 2, "kind": "artifact", "chunks": 3, "text": "report"},
        {"position": 5, "kind": "status", "at": "2026-01-01T00:00:08Z"},
        {"position": 6, "kind": "status", "at": "2026-01-01T00:00:12Z"},
    ]
    drawing = draw(found, [], is_ended=True)
    lane = drawing.lanes.index("artifacts")
    (mark,) = (shape for shape in drawing.shapes if shape.lane == lane)
    assert mark.width == 0 and mark.title.endswith("at a time that is not recorded")


def test_a_tree_that_is_cut_says_so_below_what_it_shows() -> None:
    child = {"id": "child", "agent": "clerk", "url": "", "seconds": 0, "cost": 0}
    top = {**child, "id": "top", "children": [child], "isCut": True}
    context = {"node": top, "task": {"id": "top"}, "names": {}, "base": "/console"}
    shown = render("live/tree.html", context)
    assert shown.index("child") < shown.index("a tree has 1,000 tasks at most")
    assert "1,000" not in render("live/tree.html", {**context, "node": {**top, "isCut": False}})


def test_a_tree_says_who_ordered_it_as_far_as_its_caller_claims() -> None:
    node = {"id": "top", "agent": "clerk", "url": "", "seconds": 0, "cost": 0, "children": []}
    context = {"node": node, "task": {"id": "top"}, "names": {}, "base": "/console"}
    claims = {"gateways": ["g1", "g2"], "messageId": "<m>", "taskIds": ["t1"], "trace": "4bf9"}
    shown = render("live/tree.html", {**context, "origin": claims})
    assert "Its caller says" in shown and shown.index("g1") < shown.index("g2")
    assert "t1" in shown and "4bf9" in shown and "&lt;m&gt;" in shown and "<m>" not in shown
    assert "gave nothing to other agents" not in shown
    assert "Its caller says" not in render("live/tree.html", context)


def test_a_task_without_times_has_no_timeline() -> None:
    assert draw([], [], is_ended=True).is_empty
    assert draw([{"position": 1, "kind": "step"}], [], is_ended=False).is_empty


def test_a_chart_of_one_value_or_none_is_drawn() -> None:
    assert chart("Tasks", "0", "per second", []).curve == ""
    assert chart("Tasks", "1", "per second", [1.0]).curve == "M0.0 11.3L300 11.3"
    assert chart("Tasks", "1", "per second", [1.0], slots=4).curve == "M200.0 11.3L300 11.3"


def test_amounts_are_short() -> None:
    assert [size(number) for number in (0, 999, 1500, 25_000_000)] == [
        "0 B",
        "999 B",
        "1.5 KB",
        "25 MB",
    ]
    assert [seconds(amount) for amount in (0.0021, 4.26, 75, 7300, 200_000)] == [
        *("2 ms", "4.3 s", "1 min 15 s", "2 h 1 min", "2 d 7 h")
    ]
    assert short("01a1eb39-0490-7271-807d-5368a07703a7") == "…a07703a7"


# What callers of gRPC get


def test_grpc_is_shown_where_a_card_names_an_address_for_it() -> None:
    task = {"id": "t1", "isEnded": True, "agent": "echo"}
    place = {"url": "127.0.0.1:80", "protocolBinding": "GRPC", "protocolVersion": "1.0"}
    assert grpc_view({"supportedInterfaces": [{**place, "protocolVersion": "0.3"}]}) is None
    view = grpc_view({"supportedInterfaces": [{**place, "tenant": "agents/echo"}]})
    assert view is not None
    assert view.curl("http://127.0.0.1:80", task) == (
        "grpcurl -plaintext -H 'a2a-version: 1.0' "
        '-d \'{"id":"t1","tenant":"agents/echo"}\' 127.0.0.1:80 lf.a2a.v1.A2AService/GetTask'
    )
    assert "-plaintext" not in view.curl("https://agent.example", task)


def test_a_timeline_shows_what_receivers_were_sent() -> None:
    """Taken, given up, failing and waiting; what may still come lasts until now."""
    events = [
        {
            "position": 1,
            "kind": "task",
            "at": "2026-01-01T00:00:00Z",
            "state": "TASK_STATE_WORKING",
        },
        {
            "position": 2,
            "kind": "status",
            "at": "2026-01-01T00:00:10Z",
            "state": "TASK_STATE_COMPLETED",
        },
    ]
    url = "https://hook.example"
    taken = {"position": 2, "kind": "delivered", "url": url}
    dead = {"position": 1, "kind": "dead", "url": url, "at": "2026-01-01T00:00:20Z", "tries": 3}
    drawing = draw(events, [taken, dead], is_ended=True)
    assert drawing.lanes[-1] == "pushes"
    one, two = [shape for shape in drawing.shapes if shape.lane == len(drawing.lanes) - 1]
    assert (one.tone, one.is_guess, one.width) == ("good", True, 0)
    assert (two.tone, two.is_guess, two.width) == ("bad", False, 0)
    # The axis ends with the last try, not with the task.
    assert one.x < two.x and "given up, 3 tries" in two.title
    failing = {**dead, "kind": "failing", "problem": "status 500"}
    waiting = {"position": 2, "kind": "waiting", "url": url}
    drawing = draw(events, [failing, waiting], is_ended=True)
    lasting = [shape for shape in drawing.shapes if shape.lane == len(drawing.lanes) - 1]
    assert [shape.tone for shape in lasting] == ["bad", "quiet"]
    assert all(shape.width > 0 for shape in lasting) and "status 500" in lasting[0].title
    assert "pushes" not in draw(events, [], is_ended=True).lanes


# In a line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("**Where** shall\nit *go*?", "Where shall it go?"),
        ("- a `b`\n- [c](https://d.example)", "a b c"),
        ("1 < 2 & 3", "1 < 2 & 3"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("", ""),
    ],
)
def test_a_line_has_the_words_and_not_the_marks(text: str, shown: str) -> None:
    assert line(text) == shown


def test_what_is_between_backticks_is_code_and_nothing_else_is_markup() -> None:
    assert ticked("`100/60s`: <b> `off`") == ("<code>100/60s</code>: &lt;b&gt; <code>off</code>")


def test_a_setting_of_bytes_is_read_with_its_unit() -> None:
    assert setting("8589934592", "max_stored_bytes") == "8.6 GB"
    assert setting("268435456", "max_bytes_per_caller") == "268 MB"
    assert setting("0", "max_stored_bytes") == "0"
    assert setting("1000", "max_tasks_per_caller") == "1000"


def test_an_agent_behind_a_gateway_is_told_with_its_tasks_and_its_filter() -> None:
    figures = {"started": 0, "ended": 3, "failed": 1, "p50": 20.0, "p99": 40.0}
    begun = {"started": 3, "ended": 0, "failed": 0, "p50": None, "p99": None}
    samples = [{"agents": {"travel": figures, "gateway": begun}}, {"agents": {}}]
    travel, gateway = overview._agents(samples, {"7f": "travel"}, ["gateway"])  # pyright: ignore[reportPrivateUsage]
    assert (travel["name"], travel["id"], travel["tasks"], travel["failed"]) == (
        "travel",
        "7f",
        3,
        1,
    )
    assert (travel["p50"], travel["p99"]) == (20.0, 40.0)
    assert (gateway["name"], gateway["id"], gateway["tasks"]) == ("gateway", "", 3)
    (fault,) = attention._failing([travel, gateway])  # pyright: ignore[reportPrivateUsage]
    assert fault.to == "/tasks?agent=7f&state=TASK_STATE_FAILED"
