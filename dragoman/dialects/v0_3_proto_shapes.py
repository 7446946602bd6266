"""Objects of 0.3 in the spelling of its proto: respelled as 0.3's JSON schema has them, and back.

Values are respelled and then read by 0.3, or made by 0.3 and then respelled. Input may be a mixture
of both; output has no member the proto lacks, since official readers refuse whole objects for one.
"""

import base64
import binascii
from typing import TypeVar, cast

from dragoman.dialects import reading, v0_3_shapes
from dragoman.dialects.reading import Object, Value, both_spellings
from dragoman.dialects.v1_0_shapes import ROLES, STATES, UNSPECIFIED, without_extra
from dragoman.errors import InvalidParams
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.message import Message
from dragoman.model.task import Task, TaskState

_ROLES = {name: role.value for role, name in v0_3_shapes.ROLE_NAMES.items()}


# The proto spells one of them with two Ls.
STATE_SPELLINGS = {name: state.value for state, name in v0_3_shapes.STATE_NAMES.items()} | {
    v0_3_shapes.STATE_NAMES[TaskState.CANCELED]: "TASK_STATE_CANCELLED"
}


_MESSAGE = both_spellings("messageId", "contextId", "taskId", "referenceTaskIds", "parts") | {
    "content": "parts"
}


_ARTIFACT = both_spellings("artifactId", "parts")


_STATUS = both_spellings("state", "message", "timestamp") | {"update": "message"}


_TASK = both_spellings("contextId", "status", "artifacts", "history")


_UPDATE = both_spellings("taskId", "contextId", "status", "artifact", "lastChunk")


_FILE = both_spellings("fileWithBytes", "fileWithUri", "mimeType")


_SEND = both_spellings("message", "configuration", "metadata") | {"request": "message"}


_CONFIGURATION = both_spellings(
    "acceptedOutputModes", "pushNotificationConfig", "historyLength", "blocking"
) | dict.fromkeys(("pushNotification", "push_notification"), "push_notification_config")


S = TypeVar("S")


# How files of a type begin: enough to see that bytes are the file and not its base64.
_BEGINNINGS = {
    "image/png": b"\x89PNG",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
    "audio/wav": b"RIFF",
    "audio/mpeg": b"ID3",
    "audio/ogg": b"OggS",
    "application/pdf": b"%PDF",
    "application/zip": b"PK",
    "application/gzip": b"\x1f\x8b",
}


def _fitted(value: S) -> S:
    """Return a value of the model as the proto can hold it: its data parts are objects alone, and
    it has no place for unknown fields."""
    return v0_3_shapes.with_objects(without_extra(value))


def _respelled(value: Value, known: dict[str, str], path: str) -> Object:
    """Return an object with the names that 0.3's schema has for its members."""
    fields, extra = reading.split(value, known, path)
    return extra | {reading.camel(name): item for name, item in fields.items()}


def _without_kind(value: Object) -> Object:
    del value["kind"]
    return value


def content_within(given: str | bytes) -> bytes | None:
    """Return what base64 holds twice, or bytes hold once; None: they hold something else."""
    try:
        inner = reading.base64_bytes(given, "").decode("ascii")
        return base64.b64decode(inner, validate=True) if inner else None
    except (InvalidParams, UnicodeDecodeError, binascii.Error):
        return None


def unless_unlimited(length: Value) -> Value:
    """Return a length of history; zero is the proto's word for none given."""
    return None if length in (0, "0", "") and type(length) is not bool else length


class ProtoSpelling:
    """The spelling of the proto, as one kind of peer writes it.

    The official Python library puts the base64 of a file, and not the file, where the proto has
    bytes, and cannot read anything else: `holds_text` speaks with it. `is_proto` says whether this
    is ProtoJSON: what is zero or empty may be left out, and states may be numbers.
    """

    def __init__(self, *, holds_text: bool = False, is_proto: bool = True) -> None:
        self.holds_text = holds_text
        self.is_proto = is_proto

    # From the proto's spelling to that of 0.3

    def send(self, params: Object) -> Object:
        """Return the parameters of a send."""
        core = _respelled(params, _SEND, "")
        if "message" in core:
            core["message"] = self.message(core["message"], "message")
        if type(core.get("configuration")) is dict:
            configuration = _respelled(core["configuration"], _CONFIGURATION, "configuration")
            length = unless_unlimited(configuration.pop("historyLength", None))
            # A configuration that does not say to wait means not to.
            core["configuration"] = {"blocking": False, "historyLength": length} | configuration
        return core

    def message(self, value: Value, path: str) -> Value:
        """Return a message."""
        if type(value) is not dict:
            return value
        core = _respelled(value, _MESSAGE, path)
        role = core.get("role")
        if type(role) in (str, int) and role in ROLES:
            core["role"] = v0_3_shapes.ROLE_NAMES[ROLES[role]]
        return core | self._parts(core)

    def _parts(self, core: Object) -> Object:
        if type(core.get("parts")) is not list:
            return {}
        return {"parts": [self.part(part) for part in reading.elements(core["parts"])]}

    def part(self, value: Value) -> Value:
        """Return a part."""
        if type(value) is not dict:
            return value
        core = dict(cast(Object, value))
        data = core.get("data")
        if "kind" not in core and type(data) is dict and list(cast(Object, data)) == ["data"]:
            core["data"] = data["data"]
        if type(core.get("file")) is dict:
            core["file"] = self._file(core["file"])
        return core

    def _file(self, value: Object) -> Object:
        core = _respelled(value, _FILE, "file")
        given = core.get("fileWithBytes")
        if isinstance(given, str | bytes):
            kind = core.get("mimeType")
            beginning = _BEGINNINGS.get(kind) if type(kind) is str else None
            content = content_within(given)
            if content is not None and (
                self.holds_text or (beginning is not None and content.startswith(beginning))
            ):
                core["fileWithBytes"] = content
        return core

    def _artifact(self, value: Value, path: str) -> Value:
        if type(value) is not dict:
            return value
        core = _respelled(value, _ARTIFACT, path)
        if self.is_proto:
            core.setdefault("parts", [])
        return core | self._parts(core)

    def _status(self, value: Value, path: str) -> Value:
        if type(value) is not dict:
            return value
        core = _respelled(value, _STATUS, path)
        # The proto leaves its zero out, which says that the state is not known.
        state = core.get("state", 0 if self.is_proto else None)
        if type(state) is str or (type(state) is int and self.is_proto):
            if state in UNSPECIFIED:
                core["state"] = "unknown"
            elif state in STATES:
                core["state"] = v0_3_shapes.STATE_NAMES[STATES[state]]
        if "message" in core:
            core["message"] = self.message(core["message"], f"{path}.message")
        return core

    def task(self, value: Value, path: str) -> Object:
        """Return a task."""
        core = _respelled(value, _TASK, path)
        if "status" in core:
            core["status"] = self._status(core["status"], f"{path}.status")
        for name, read in (("artifacts", self._artifact), ("history", self.message)):
            if type(core.get(name)) is list:
                core[name] = [read(item, f"{path}.{name}") for item in reading.elements(core[name])]
        return core

    def update(self, value: Value, path: str) -> Object:
        """Return an event."""
        core = _respelled(value, _UPDATE, path)
        for name, read in (("status", self._status), ("artifact", self._artifact)):
            if name in core:
                core[name] = read(core[name], f"{path}.{name}")
        return core

    # From 0.3 to the proto

    def encode_event(self, event: Event) -> Object:
        """Return an event in its wrapper."""
        match event:
            case Task():
                return {"task": self.encode_task(event)}
            case Message():
                return {"message": self.encode_message(event)}
            case StatusUpdate():
                update = v0_3_shapes.encode_status_update(_fitted(event))
                self._spell_status(update["status"])
                return {"statusUpdate": _without_kind(update)}
            case ArtifactUpdate():
                update = v0_3_shapes.encode_artifact_update(_fitted(event))
                self._spell_parts(update["artifact"]["parts"])
                return {"artifactUpdate": _without_kind(update)}
            case _:
                raise ValueError(f"{type(event).__name__} is not part of any stream")

    def encode_task(self, task: Task) -> Object:
        """Return a task."""
        value = v0_3_shapes.encode_task(_fitted(task))
        self._spell_status(value["status"])
        for artifact in value.get("artifacts", []):
            self._spell_parts(artifact["parts"])
        for message in value.get("history", []):
            self._spell_message(message)
        return _without_kind(value)

    def encode_message(self, message: Message) -> Object:
        """Return a message."""
        value = v0_3_shapes.encode_message(_fitted(message))
        self._spell_message(value)
        return value

    def _spell_status(self, value: Object) -> None:
        value["state"] = STATE_SPELLINGS[value["state"]]
        if "message" in value:
            self._spell_message(value["message"])

    def _spell_message(self, value: Object) -> None:
        del value["kind"]
        # The proto has no such field.
        value.pop("referenceTaskIds", None)
        value["role"] = _ROLES[value["role"]]
        value["content"] = value.pop("parts")
        self._spell_parts(value["content"])

    def _spell_parts(self, parts: list[Object]) -> None:
        for part in parts:
            match part.pop("kind"):
                case "data":
                    part["data"] = {"data": part["data"]}
                case "file":
                    file: Object = part["file"]
                    if "uri" in file:
                        file["fileWithUri"] = file.pop("uri")
                    else:
                        raw: bytes = file.pop("bytes")
                        file["fileWithBytes"] = base64.b64encode(raw) if self.holds_text else raw
                case _:
                    pass
