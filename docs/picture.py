"""Draw the picture of the design: all rooms, and three ways through them.

    python docs/picture.py

writes `docs/pictures/design.svg`. `tests/test_docs.py` holds it to the rooms and files that exist.
"""

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

TARGET = Path(__file__).parent / "pictures" / "design.svg"

# From the top down; imports go down too.
ROWS = {
    "people look at": ("cli", "console"),
    "joins parts": ("server", "gateway", "mcp", "openai", "compat", "testing"),
    "runs and calls": ("authoring", "client", "generation", "agents"),
    "decides": ("engine",),
    "carries": ("http", "transports", "push", "tunnels"),
    "translates, guards": ("security", "dialects", "egress"),
    "keeps": ("stores",),
    "all know": ("service", "errors", "config", "shares", "telemetry", "model"),
}


class Station(NamedTuple):
    room: str
    file: str
    does: str


class Way(NamedTuple):
    name: str
    letter: str
    stations: tuple[Station, ...]


WAYS = (
    Way(
        "A request",
        "request",
        (
            Station("http", "http/protocol.py", "reads the head within bounds"),
            Station("server", "server/app.py", "finds the agent of the path"),
            Station("security", "security/authentication.py", "names the caller"),
            Station("transports", "transports/jsonrpc.py", "takes the envelope off"),
            Station("dialects", "dialects/v0_3.py", "decodes and checks, once"),
            Station("engine", "engine/sending.py", "begins a task and its log"),
            Station("authoring", "authoring/skill.py", "runs the author's function"),
            Station("stores", "stores/sqlite/writer.py", "writes each event, then shows it"),
        ),
    ),
    Way(
        "A forwarded task",
        "forwarded",
        (
            Station("engine", "engine/intake.py", "takes the message as above"),
            Station("gateway", "gateway/router.py", "chooses an agent"),
            Station("stores", "gateway/money/order_rules.py", "task, order and hold: one write"),
            Station("client", "gateway/delivery/delivery.py", "sends under an id of its own"),
            Station("egress", "egress/egress.py", "dials the agent, again if need be"),
            Station("gateway", "gateway/delivery/answer_relay.py", "records what comes back"),
            Station("stores", "stores/interface/effects.py", "the end settles the order"),
        ),
    ),
    Way(
        "A recovery",
        "recovery",
        (
            Station("server", "server/upkeep.py", "looks every second"),
            Station("engine", "engine/recovery.py", "claims tasks of holders that ended"),
            Station("stores", "stores/interface/tasks.py", "raises the fence: old writes fail"),
            Station("engine", "engine/running/replay.py", "reads the log again"),
            Station("authoring", "engine/running/worker.py", "runs on; steps are not repeated"),
        ),
    ),
)

WIDTH, LEFT, TOP = 1080, 160, 24
BOX_HEIGHT, ROW_HEIGHT, GAP = 50, 72, 14
BADGE = 19
WIDE = 400
SHARES = {"request": 0.32, "forwarded": 0.66, "recovery": 0.96}

STYLE = """
  svg { font-family: system-ui, sans-serif; font-size: 15px }
  .page { fill: #ffffff; stroke: #d0d4dc } .room { fill: #f1f3f8; stroke: #9aa3b5 }
  text { fill: #1c2333 } .row, .file { fill: #5b6478; font-size: 13px }
  .name { font-weight: 600 } .badge text { fill: #ffffff; font-size: 12px; font-weight: 700 }
  .request { --way: #1f5fbf } .forwarded { --way: #b4540a } .recovery { --way: #1d7a3e }
  .badge circle, .title { fill: var(--way) } .title { font-weight: 700 }
  .line { fill: none; stroke: var(--way); stroke-width: 2; opacity: 0.45 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #151922; stroke: #394154 } .room { fill: #222938; stroke: #56607a }
    text { fill: #e8ebf2 } .row, .file { fill: #aab3c5 } .badge text { fill: #10131a }
    .request { --way: #7fb2ff } .forwarded { --way: #ffad66 } .recovery { --way: #6fd394 }
    .badge circle, .title { fill: var(--way) }
  }
"""


def boxes() -> dict[str, tuple[float, float, float]]:
    """Return where each room is: left, top and width."""
    found: dict[str, tuple[float, float, float]] = {}
    for number, rooms in enumerate(ROWS.values()):
        wide = (WIDTH - LEFT - 24 - GAP * (len(rooms) - 1)) / len(rooms)
        for place, room in enumerate(rooms):
            found[room] = (LEFT + place * (wide + GAP), TOP + number * ROW_HEIGHT, wide)
    return found


def badges(
    places: dict[str, tuple[float, float, float]],
) -> dict[tuple[str, int], tuple[float, float]]:
    """Return where the number of each station is, in its room."""
    used: dict[str, int] = {}
    found: dict[tuple[str, int], tuple[float, float]] = {}
    for way in WAYS:
        for number, station in enumerate(way.stations):
            left, top, wide = places[station.room]
            # A wide room has a place for each way, so that lines do not meet.
            begin = left + wide * SHARES[way.letter] if wide > WIDE else left + wide
            key = f"{station.room} {way.letter if wide > WIDE else ''}"
            slot = used[key] = used.get(key, 0) + 1
            found[way.letter, number] = (begin - slot * (BADGE + 4), top + BOX_HEIGHT - 13)
    return found


def badge(way: Way, number: int, x: float, y: float) -> str:
    circle = f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{BADGE / 2}"/>'
    digit = f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{number + 1}</text>'
    return f'<g class="badge {way.letter}">{circle}{digit}</g>'


def legend(top: float) -> list[str]:
    """Return each way in words, side by side."""
    lines: list[str] = []
    wide = (WIDTH - 48) / len(WAYS)
    for column, way in enumerate(WAYS):
        left = 24 + column * wide
        lines.append(f'<text class="title {way.letter}" x="{left:.0f}" y="{top}">{way.name}</text>')
        for number, station in enumerate(way.stations):
            y = top + 30 + number * 42
            lines.append(badge(way, number, left + 10, y - 5))
            lines.append(f'<text x="{left + 28:.0f}" y="{y}">{escape(station.does)}</text>')
            path = f'<text class="file" x="{left + 28:.0f}" y="{y + 17}">{station.file}</text>'
            lines.append(path)
    return lines


def picture() -> str:
    """Return the picture as SVG."""
    places = boxes()
    points = badges(places)
    bottom = TOP + len(ROWS) * ROW_HEIGHT
    height = bottom + 60 + 42 * max(len(way.stations) for way in WAYS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The rooms of Dragoman, and the ways of a request, a forwarded task and a recovery"
        "</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="10"/>',
    ]
    for number, row in enumerate(ROWS):
        y = TOP + number * ROW_HEIGHT + BOX_HEIGHT / 2 + 4
        lines.append(f'<text class="row" x="24" y="{y:.0f}">{row}</text>')
    for left, top, wide in places.values():
        lines.append(
            f'<rect class="room" x="{left:.0f}" y="{top}" width="{wide:.0f}" '
            f'height="{BOX_HEIGHT}" rx="6"/>'
        )
    for way in WAYS:
        stops = [points[way.letter, number] for number in range(len(way.stations))]
        path = " ".join(f"{x:.0f},{y:.0f}" for x, y in stops)
        lines.append(f'<polyline class="line {way.letter}" points="{path}"/>')
    for room, (left, top, _) in places.items():
        lines.append(f'<text class="name" x="{left + 10:.0f}" y="{top + 20}">{room}</text>')
    for way in WAYS:
        for number in range(len(way.stations)):
            lines.append(badge(way, number, *points[way.letter, number]))
    return "\n".join([*lines, *legend(bottom + 24), "</svg>", ""])


if __name__ == "__main__":
    TARGET.write_text(picture(), encoding="utf-8")
