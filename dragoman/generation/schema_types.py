"""JSON Schemas as types of Python: objects become TypedDicts, the rest expressions.

A schema that says less than a type, or something that no type says, is `Any` in that place. One
that is too large, or too deep, is refused.
"""

import hashlib
import keyword
import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from dragoman.errors import ConfigError
from dragoman.generation.python_text import class_name, docstring, free_name, literal
from dragoman.model.record import encode

_MAX_DEPTH = 40
_MAX_NODES = 5000
_MAX_CHOICES = 50
_MAX_LITERAL = 200
_MAX_NAME = 200
# Definitions of a larger schema are not looked for in others.
_MAX_COMPARED = 64 * 1024
_SIMPLE = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
# A name that means the same as a member of a class and as a key; two underscores would not.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z", re.ASCII)
ANY = "Any"


class TypeText(msgspec.Struct, frozen=True):
    """An expression of a type."""

    text: str
    # Whether it names a class whose definition has not ended: then it is quoted.
    is_open: bool = False

    @property
    def quoted(self) -> str:
        """The expression as it stands in the body of a class."""
        return literal(self.text) if self.is_open else self.text


class SchemaTypes:
    """The types of the schemas of one card, with the classes that they need."""

    def __init__(self, used: set[str]) -> None:
        self._used = used
        # The definitions of classes, each after those that it names.
        self.definitions: list[str] = []
        self._nodes = 0
        # The type of each definition, by its name and its content; None: it is being made.
        self._references: dict[str, TypeText | None] = {}
        self._open_names: dict[str, str] = {}
        # What definitions are known by. The schemas that they are in are compared by identity, so
        # all are kept.
        self._keys: dict[tuple[int, str], str] = {}
        self._roots: list[Any] = []

    def type_of(self, schema: Any, name: str) -> str:
        """Return the type of a whole schema; `name` is for a class, if it needs one. Raises
        `ConfigError` for one that is too large."""
        self._roots.append(schema)
        return self._type(schema, schema, name, 0).text

    def _type(self, schema: Any, root: Any, name: str, depth: int) -> TypeText:
        self._nodes += 1
        if self._nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise ConfigError("the schemas of the card are too large to make types of them")
        if not isinstance(schema, dict):
            return TypeText(ANY)
        facts = cast("dict[str, Any]", schema)
        if isinstance(reference := facts.get("$ref"), str):
            return self._referred(reference, root, depth)
        if "const" in facts:
            return TypeText(_literals([facts["const"]]) or ANY)
        if isinstance(choices := facts.get("enum"), list):
            return TypeText(_literals(cast("list[Any]", choices)) or ANY)
        for member in ("anyOf", "oneOf"):
            if isinstance(options := facts.get(member), list):
                return self._union(cast("list[Any]", options), root, name, depth)
        if isinstance(whole := facts.get("allOf"), list) and len(cast("list[Any]", whole)) == 1:
            return self._type(whole[0], root, name, depth + 1)
        kind = facts.get("type")
        if isinstance(kind, list):
            options = [{**facts, "type": one} for one in cast("list[Any]", kind)[:10]]
            return self._union(options, root, name, depth)
        return self._of_kind(kind, facts, root, name, depth)

    def _of_kind(
        self, kind: Any, facts: dict[str, Any], root: Any, name: str, depth: int
    ) -> TypeText:
        if kind == "string" and facts.get("contentEncoding") == "base64":
            return TypeText("bytes")
        if kind == "array":
            if (places := _places(facts)) is not None:
                found = [self._type(one, root, f"{name}Item", depth + 1) for one in places]
                texts = ", ".join(one.text for one in found)
                return TypeText(f"tuple[{texts}]", any(one.is_open for one in found))
            items = self._type(facts.get("items"), root, f"{name}Item", depth + 1)
            return TypeText(f"list[{items.text}]", items.is_open)
        if kind == "object" or (kind is None and "properties" in facts):
            return self._object(facts, root, name, depth)
        return TypeText(_SIMPLE.get(kind, ANY) if isinstance(kind, str) else ANY)

    def _union(self, options: list[Any], root: Any, name: str, depth: int) -> TypeText:
        if not 0 < len(options) <= _MAX_CHOICES:
            return TypeText(ANY)
        found = [
            self._type(one, root, name if place == 0 else f"{name}{place + 1}", depth + 1)
            for place, one in enumerate(options)
        ]
        texts = list(dict.fromkeys(one.text for one in found))
        if ANY in texts:
            return TypeText(ANY)
        # None last, as people write it.
        texts.sort(key=lambda text: text == "None")
        return TypeText(" | ".join(texts), any(one.is_open for one in found))

    def _referred(self, reference: str, root: Any, depth: int) -> TypeText:
        key = self._key(reference, root)
        if key in self._references:
            known = self._references[key]
            if known is not None:
                return known
            # It refers to itself: a class can, by its name.
            open_name = self._open_names.get(key)
            return TypeText(open_name, is_open=True) if open_name else TypeText(ANY)
        target = _target(reference, root)
        if target is None:
            return TypeText(ANY)
        self._references[key] = None
        title = reference.rpartition("/")[2]
        if _is_class(target):
            self._open_names[key] = free_name(class_name(title, "Object"), self._used)
            found = self._class(target, root, self._open_names[key], depth + 1)
        else:
            found = self._type(target, root, class_name(title, "Object"), depth + 1)
        self._references[key] = found
        return found

    def _key(self, reference: str, root: Any) -> str:
        """Return what tells a definition from others, in whichever schema it is: its name, its
        content, and that of all that it refers to."""
        place = (id(root), reference)
        if place not in self._keys:
            is_small = len(encode(root)) <= _MAX_COMPARED
            content = encode(_reachable(reference, root)) if is_small else b"%d" % id(root)
            digest = hashlib.blake2b(content, digest_size=16).hexdigest()
            self._keys[place] = f"{digest} {reference}"
        return self._keys[place]

    def _object(self, facts: dict[str, Any], root: Any, name: str, depth: int) -> TypeText:
        if _is_class(facts):
            title = facts.get("title")
            wanted = class_name(title, name) if isinstance(title, str) else name
            return self._class(facts, root, free_name(wanted, self._used), depth)
        values = facts.get("additionalProperties")
        if not isinstance(values, dict):
            return TypeText(f"dict[str, {ANY}]")
        inner = self._type(values, root, f"{name}Value", depth + 1)
        return TypeText(f"dict[str, {inner.text}]", inner.is_open)

    def _class(self, facts: dict[str, Any], root: Any, name: str, depth: int) -> TypeText:
        fields = list(self.fields(facts, root, name, depth))
        about = facts.get("description")
        if all(_PLAIN.match(key) and not keyword.iskeyword(key) for key, _ in fields):
            lines = [f"class {name}(TypedDict):"]
            if isinstance(about, str) and about.strip():
                lines += [docstring(about, "    "), ""]
            lines += [f"    {key}: {text}" for key, text in fields]
        else:
            members = [f"        {literal(key)}: {text}," for key, text in fields]
            lines = [
                f"{name} = TypedDict(",
                f"    {literal(name)},",
                "    {",
                *members,
                "    },",
                ")",
            ]
        self.definitions.append("\n".join(lines))
        return TypeText(name)

    def fields(
        self, facts: dict[str, Any], root: Any, name: str, depth: int = 0
    ) -> Iterator[tuple[str, str]]:
        """Yield the members of an object, and what each is in a TypedDict."""
        required = _required(facts)
        for key, schema in _properties(facts).items():
            inner = self._type(schema, root, f"{name}{class_name(key, 'Field')}", depth + 1)
            yield key, inner.quoted if key in required else f"NotRequired[{inner.quoted}]"

    def parameters(self, schema: Any, name: str) -> Iterator[tuple[str, str, bool]]:
        """Yield the arguments of a skill: the name on the wire, the type, and whether it is
        needed. The needed ones come first."""
        self._roots.append(schema)
        facts = cast("dict[str, Any]", schema)
        required = _required(facts)
        properties = sorted(_properties(facts).items(), key=lambda one: one[0] not in required)
        for key, one in properties:
            inner = self._type(one, schema, f"{name}{class_name(key, 'Field')}", 1)
            yield key, inner.text, key in required


def _reachable(reference: str, root: Any) -> dict[str, Any]:
    """Return a definition and all that it refers to, by their references."""
    found: dict[str, Any] = {}
    waiting = [reference]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = _target(name, root)
        inside = [found[name]]
        while inside:
            one = inside.pop()
            if isinstance(one, list):
                inside += cast("list[Any]", one)
            elif isinstance(one, dict):
                members = cast("dict[str, Any]", one)
                inside += members.values()
                if isinstance(inner := members.get("$ref"), str):
                    waiting.append(inner)
    return {name: found[name] for name in sorted(found)}


def takes_arguments(schema: Any) -> bool:
    """Tell whether a schema is of named arguments."""
    return isinstance(schema, dict) and bool(_properties(cast("dict[str, Any]", schema)))


def _properties(facts: dict[str, Any]) -> dict[str, Any]:
    found = facts.get("properties")
    properties = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    for key in properties:
        if len(key) > _MAX_NAME:
            raise ConfigError("the schemas of the card have names that are too long")
    return properties


def _places(facts: dict[str, Any]) -> list[Any] | None:
    """Return the schemas of a list that has so many values, each of its own type."""
    found = facts.get("prefixItems")
    places = cast("list[Any]", found) if isinstance(found, list) else []
    has_no_more = facts.get("items") is False or facts.get("maxItems") == len(places)
    is_whole = has_no_more and facts.get("minItems") == len(places)
    return places if is_whole and 0 < len(places) <= _MAX_CHOICES else None


def _required(facts: dict[str, Any]) -> frozenset[str]:
    found = facts.get("required")
    listed = cast("list[Any]", found) if isinstance(found, list) else []
    return frozenset(name for name in listed if isinstance(name, str))


def _is_class(facts: dict[str, Any]) -> bool:
    is_object = facts.get("type", "object") == "object" and "$ref" not in facts
    return is_object and bool(_properties(facts))


def _target(reference: str, root: Any) -> dict[str, Any] | None:
    """Return what a reference within the schema leads to; no other document is ever read."""
    if not reference.startswith("#/"):
        return None
    found = root
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or key not in found:
            return None
        found = cast("dict[str, Any]", found)[key]
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _literals(values: list[Any]) -> str:
    """Return the type of some values; empty: it is of no use."""
    if not 0 < len(values) <= _MAX_CHOICES:
        return ""
    texts: list[str] = []
    for value in values:
        if isinstance(value, str) and len(value) <= _MAX_LITERAL:
            texts.append(literal(value))
        elif value is None or isinstance(value, bool | int):
            texts.append(repr(value) if not _is_huge(value) else "")
        else:
            return ""
    return f"Literal[{', '.join(dict.fromkeys(texts))}]" if all(texts) else ""


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and abs(value) >= 1 << 63
