"""Messages and artifacts as people read them, and the files in them."""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from dragoman.console import markup
from dragoman.console.api import ApiFailed
from dragoman.console.visit import Download

# Pictures that are shown, each by the bytes that it begins with: what an agent calls it counts not.
_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
# Where a file is: in a message, an artifact, the status or an event, and which part of it.
_KEY = re.compile(r"(?P<list>[mase])(?P<at>[0-9]{0,9})\.(?P<part>[0-9]{1,6})")
# Messages of one task that are drawn at once: the last ones.
MOST_SHOWN = 200
# Characters of a line that stands for an event.
_LINE = 80


def conversation(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what was said and made, in the order in which a person would tell it."""
    said = [_said(message, f"m{at}") for at, message in enumerate(task.get("history", []))]
    status = task.get("status", {})
    last = status.get("message")
    known = {message.get("messageId") for message in task.get("history", [])}
    if last and last.get("messageId") not in known:
        said.append({**_said(last, "s"), "at": status.get("timestamp", "")})
    made = [_made(artifact, f"a{at}") for at, artifact in enumerate(task.get("artifacts", []))]
    if made and said and said[-1]["role"] == "agent" and said[-1]["key"] == "s":
        # What it says last comes after what it made.
        return [*said[:-1], *made, said[-1]]
    return [*said, *made]


class FoldedTask:
    """A task folded from its events, one after the other, as the server folds it: of a long task
    in one piece that would hold up all other requests."""

    def __init__(self) -> None:
        self._task: dict[str, Any] = {}
        self._status: dict[str, Any] = {}
        self._history: list[Any] = []
        self._artifacts: dict[str, dict[str, Any]] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Fold one more event."""
        for kind, value in event.items():
            if kind == "task":
                self._task, self._status = value, value["status"]
                self._history = list(value.get("history", []))
                made: list[dict[str, Any]] = value.get("artifacts", [])
                self._artifacts = {one["artifactId"]: one for one in made}
            elif kind == "messageAdded":
                self._retire_status_message()
                self._history.append(value["message"])
            elif kind == "statusUpdate":
                self._retire_status_message()
                self._status = value["status"]
            elif kind == "artifactUpdate":
                self._add_artifact(value["artifact"], is_more=bool(value.get("append")))

    def _add_artifact(self, artifact: dict[str, Any], *, is_more: bool) -> None:
        known = self._artifacts.get(artifact["artifactId"])
        if is_more and known is not None:
            known["parts"] += artifact["parts"]
        else:
            self._artifacts[artifact["artifactId"]] = artifact

    def _retire_status_message(self) -> None:
        if message := self._status.get("message"):
            self._history.append(message)
            self._status = {name: one for name, one in self._status.items() if name != "message"}

    def task(self) -> dict[str, Any]:
        """Return the task as it stands."""
        lists = {"history": self._history, "artifacts": list(self._artifacts.values())}
        own = {name: one for name, one in self._task.items() if name not in lists}
        return {**own, "status": self._status, **{name: one for name, one in lists.items() if one}}


def from_events(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a task as far as some of its events tell it: folding all of a long one takes long."""
    task: dict[str, Any] = {"history": [], "artifacts": [], "status": {}}
    made: dict[str, dict[str, Any]] = {}
    for item in items:
        for kind, value in item["event"].items():
            if kind == "task":
                task["history"] += value.get("history", [])
            elif kind == "messageAdded":
                task["history"].append(value["message"])
            elif kind == "statusUpdate" and "message" in value["status"]:
                task["history"].append(value["status"]["message"])
            elif kind == "artifactUpdate":
                artifact = value["artifact"]
                known = made.setdefault(artifact["artifactId"], {**artifact, "parts": []})
                known["parts"] += artifact["parts"]
    task["artifacts"] = list(made.values())
    return task


def keyed(items: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return events whose files say in which of them they are: which part of the whole task a file
    is cannot be told from some of its events."""
    for item in items:
        for at, part in enumerate(_event_parts(item["event"])):
            if "raw" in part:
                part["key"] = f"e{item['position']}.{at}"
    return items


def _event_parts(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of everything that an event brings."""
    none: dict[str, Any] = {}
    holders: list[dict[str, Any]] = [
        *event.get("task", none).get("history", []),
        event.get("messageAdded", none).get("message", none),
        event.get("statusUpdate", none).get("status", none).get("message", none),
        event.get("artifactUpdate", none).get("artifact", none),
    ]
    return [part for holder in holders for part in holder.get("parts", [])]


def event_of(key: str) -> int:
    """Return the position of the event that a file is in; 0: its key names none."""
    found = _KEY.fullmatch(key)
    return int(found["at"] or 0) if found is not None and found["list"] == "e" else 0


def first_message(task: dict[str, Any]) -> dict[str, Any]:
    """Return what began a task; empty where its log does not say."""
    history: list[dict[str, Any]] = task.get("history", [])
    none: dict[str, Any] = {}
    return next((one for one in history if one.get("role") == "ROLE_USER"), none)


def _said(message: dict[str, Any], key: str) -> dict[str, Any]:
    role = "user" if message.get("role") == "ROLE_USER" else "agent"
    return {
        "key": key,
        "role": role,
        "name": "",
        "at": "",
        "parts": parts(message.get("parts", []), key),
        "references": message.get("referenceTaskIds", []),
    }


def _made(artifact: dict[str, Any], key: str) -> dict[str, Any]:
    return {
        "key": key,
        "role": "artifact",
        "name": artifact.get("name") or artifact.get("artifactId", ""),
        "at": "",
        "parts": parts(artifact.get("parts", []), key),
        "references": [],
    }


def parts(found: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return the parts of a message as they are drawn; neighbouring chunks of text are one."""
    shown: list[dict[str, Any]] = []
    pieces: list[str] = []
    for at, part in enumerate(found):
        if "text" in part and key.startswith("a"):
            pieces.append(part["text"])
            continue
        _flush(shown, pieces)
        if "text" in part:
            shown.append({"kind": "text", "text": part["text"]})
        elif "data" in part:
            # What a question is made of is drawn as its form, and is of use to programs alone.
            is_form = isinstance(part["data"], dict) and "requestId" in part["data"]
            shown.append({"kind": "request" if is_form else "data", "value": part["data"]})
        elif "url" in part:
            shown.append({"kind": "url", "url": part["url"], "is_web": _is_web(part["url"])})
        else:
            place = part.get("key", f"{key}.{at}")
            shown.append({"kind": "file", "key": place, **_described(part)})
    _flush(shown, pieces)
    return shown


def _flush(shown: list[dict[str, Any]], pieces: list[str]) -> None:
    """Add chunks of text as one part."""
    if pieces:
        shown.append({"kind": "text", "text": "".join(pieces)})
        pieces.clear()


def _described(part: dict[str, Any]) -> dict[str, Any]:
    body = _bytes(part)
    return {
        "name": part.get("filename") or "file",
        "type": part.get("mediaType") or "application/octet-stream",
        "size": markup.size(len(body)),
        "is_picture": _picture_type(body) != "",
    }


def file(holder: dict[str, Any], key: str, *, is_shown: bool) -> Download:
    """Return a file by its key, of a task or of the event that the key names; a picture may be
    shown. Raises `ApiFailed`."""
    found = _KEY.fullmatch(key)
    if found is None:
        raise ApiFailed(404, "There is no such file.")
    try:
        part = _parts(holder, found["list"], int(found["at"] or 0))[int(found["part"])]
    except (KeyError, IndexError):
        raise ApiFailed(404, "There is no such file.") from None
    if "raw" not in part:
        raise ApiFailed(404, "There is no such file.")
    body = _bytes(part)
    picture = _picture_type(body) if is_shown else ""
    name = str(part.get("filename") or "file").replace("\\", "/").rpartition("/")[2] or "file"
    return Download(name, picture or "application/octet-stream", body, is_shown=bool(picture))


def _parts(holder: dict[str, Any], name: str, at: int) -> list[dict[str, Any]]:
    if name == "e":
        return _event_parts(holder)
    if name == "s":
        return holder["status"]["message"]["parts"]
    return holder["history" if name == "m" else "artifacts"][at]["parts"]


def _bytes(part: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(part.get("raw", ""))
    except (binascii.Error, ValueError, TypeError):
        return b""


def _picture_type(body: bytes) -> str:
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _PICTURES.items() if body.startswith(start)), "")


def _is_web(url: Any) -> bool:
    try:
        return isinstance(url, str) and urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


def text_of(message: dict[str, Any]) -> str:
    """Return the words of a message, and of its data the JSON."""
    found: list[str] = []
    for part in message.get("parts", []):
        if "text" in part:
            found.append(part["text"])
        elif "data" in part:
            found.append(msgspec.json.encode(part["data"]).decode())
    return "\n".join(found)


def state_in(event: dict[str, Any]) -> str:
    """Return the state that an event, as it is stored, brings its task to; empty: none."""
    status = event.get("statusUpdate", event.get("task", {})).get("status", {})
    return str(status.get("state", ""))


def line_of(event: dict[str, Any]) -> str:
    """Return the texts that an event says, in a line; of a step its name."""
    texts: list[str] = [event.get("stepRecorded", {}).get("name", "")[:_LINE]]

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in cast("dict[str, Any]", value).items():
                if name == "text" and isinstance(inner, str):
                    texts.append(inner[:_LINE])
                else:
                    collect(inner)
        elif isinstance(value, list):
            for inner in cast("list[Any]", value):
                collect(inner)

    collect(event)
    return " ".join(" ".join(texts).split())[:_LINE]
