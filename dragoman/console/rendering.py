"""Templates: the environment they are rendered in, and the words for states, times and ids."""

import hashlib
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from markupsafe import Markup

from dragoman.console import assets, markup

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context

_FOLDER = Path(__file__).parent / "templates"


class StateName(NamedTuple):
    """A state as people read it: a word, its tone, and the shape that tells it without colour."""

    word: str
    tone: str
    shape: str


STATES = {
    "TASK_STATE_SUBMITTED": StateName("queued", "quiet", "ring"),
    "TASK_STATE_WORKING": StateName("working", "active", "play"),
    "TASK_STATE_COMPLETED": StateName("completed", "good", "check"),
    "TASK_STATE_FAILED": StateName("failed", "bad", "cross"),
    "TASK_STATE_CANCELED": StateName("canceled", "quiet", "bar"),
    "TASK_STATE_INPUT_REQUIRED": StateName("asks", "ask", "question"),
    "TASK_STATE_REJECTED": StateName("rejected", "bad", "slash"),
    "TASK_STATE_AUTH_REQUIRED": StateName("needs sign-in", "ask", "key"),
}
_UNKNOWN = StateName("unknown", "quiet", "ring")


class Fragment(msgspec.Struct, frozen=True):
    """A part of a page that changes while it is looked at."""

    id: str
    html: str

    @property
    def digest(self) -> str:
        """What tells it from an earlier one."""
        return hashlib.blake2b(self.html.encode(), digest_size=8).hexdigest()


@cache
def environment() -> "Environment":
    """Return the environment of all templates."""
    from jinja2 import Environment, FileSystemLoader, pass_context

    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )

    @pass_context
    def live(context: "Context", name: str) -> Markup:
        found = fragment(name, dict(context.get_all()))
        return Markup('<div id="{}" data-live="{}">{}</div>').format(
            found.id,
            found.digest,
            Markup(found.html),
        )

    # Jinja's own types name only what it puts there itself.
    known = cast("dict[str, Any]", made.globals)
    known |= {"live": live, "states": STATES, "assets": assets.digest()}
    filters = cast("dict[str, Any]", made.filters)
    filters |= {
        "state": state_name,
        "markdown": markup.markdown,
        "line": markup.line,
        "ticked": markup.ticked,
        "json": markup.json_text,
        "visible": markup.visible,
        "size": markup.size,
        "setting": setting,
        "instant": instant,
        "clock": clock,
        "short": short,
        "seconds": seconds,
    }
    known["ui"] = made.get_template("ui.html").module
    return made


def render(template: str, context: dict[str, Any]) -> str:
    """Return a template that was filled in."""
    return environment().get_template(template).render(context)


def fragment(name: str, context: dict[str, Any]) -> Fragment:
    """Return a part of a page."""
    return Fragment(name, render(f"live/{name}.html", context))


def state_name(name: str) -> StateName:
    """Return a state as people read it; one that no version knows is unknown."""
    return STATES.get(name, _UNKNOWN)


def read_instant(text: str) -> datetime | None:
    """Return the instant of an RFC 3339 text; None: it is none."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, ValueError):
        return None


def instant(text: str) -> str:
    """Return a time as people read it in full."""
    found = read_instant(text)
    return f"{found:%Y-%m-%d %H:%M:%S}.{found.microsecond // 1000:03d} UTC" if found else text


def clock(text: str) -> str:
    """Return the time of day, with the date where it is not today."""
    found = read_instant(text)
    if found is None:
        return text
    is_today = found.date() == datetime.now(UTC).date()
    return f"{found:%H:%M:%S}" if is_today else f"{found:%Y-%m-%d %H:%M}"


def short(id: str) -> str:
    """Return an id as lists show it. Ids made here begin with the time, and end with chance."""
    return id if len(id) <= 12 else f"…{id[-8:]}"


def setting(value: str, name: str) -> str:
    """Return the value of a setting as people read it: an amount of bytes with its unit."""
    is_size = name.endswith("_bytes") or "_bytes_" in name
    return markup.size(int(value)) if is_size and value.isdecimal() and int(value) else value


def seconds(amount: float) -> str:
    """Return a duration as people read it."""
    if amount < 1:
        return f"{amount * 1000:.0f} ms"
    if amount < 60:
        return f"{amount:.1f} s"
    minutes, rest = divmod(int(amount), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"
