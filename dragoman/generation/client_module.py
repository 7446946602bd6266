"""The module of an agent's card: its types, a class with a method for each skill, and the twin of
that class for code that is not async."""

import ast
import contextlib
from collections.abc import Iterator

import msgspec

from dragoman.client.typed import SkillSchemas, schemas_of
from dragoman.errors import ConfigError
from dragoman.generation import harmless
from dragoman.generation.python_text import (
    class_name,
    docstring,
    free_name,
    literal,
    snake_name,
)
from dragoman.generation.schema_types import SchemaTypes, takes_arguments
from dragoman.model.card import AgentCard, AgentSkill

_MAX_SKILLS = 500
_MAX_BYTES = 2 * 1024 * 1024
_IMPORTED = {
    "collections.abc": ("AsyncIterator", "Iterator"),
    "typing": ("Any", "ClassVar", "Literal", "NotRequired", "TypedDict"),
    "dragoman": ("Answer", "Stream"),
    "dragoman.client.typed": ("Content", "Events", "TypedClient", "TypedSync"),
}
# What the class and its twin have already.
_OWN = frozenset(
    [
        *("agent", "skills", "client", "beside", "close", "changes", "arguments"),
        *("call", "ask", "stream", "stream_text", "sync", "run", "iterate"),
    ]
)


class _Parameter(msgspec.Struct, frozen=True):
    """A parameter of a method: of an argument on the wire, if it has a key."""

    name: str
    kind: str
    key: str = ""
    is_required: bool = True

    @property
    def declared(self) -> str:
        """The parameter as a method declares it."""
        if self.is_required:
            return f"{self.name}: {self.kind}"
        is_optional = self.kind.endswith("None") or self.kind == "Any"
        return f"{self.name}: {self.kind if is_optional else f'{self.kind} | None'} = None"


class _Method(msgspec.Struct, frozen=True):
    """A skill as a method."""

    skill: AgentSkill
    name: str
    stream_name: str
    parameters: list[_Parameter]
    # The type of the result; empty: whatever the agent answers.
    result: str

    @property
    def content(self) -> str:
        """The expression of what is sent."""
        if not self.parameters[0].key:
            return self.parameters[0].name
        needed = [one for one in self.parameters if one.is_required]
        others = [one for one in self.parameters if not one.is_required]
        given = ", ".join(f"{literal(one.key)}: {one.name}" for one in needed)
        optional = ", ".join(f"{literal(one.key)}: {one.name}" for one in others)
        return f"self.arguments({{{given}}}, {{{optional}}})"

    @property
    def about(self) -> str:
        """What the docstring says."""
        return self.skill.description or self.skill.name or self.skill.id

    def declared(self, name: str) -> str:
        """Return the method's name and parameters."""
        return f"{name}(self, {', '.join(one.declared for one in self.parameters)})"

    @property
    def passed(self) -> str:
        """The parameters as they are handed on."""
        return ", ".join(one.name for one in self.parameters)


def client_module(card: AgentCard, ref: str) -> str:
    """Return the module of typed calls of an agent; `ref` is where it is. Raises `ConfigError` for
    a card that no module can be made of."""
    used = {name for names in _IMPORTED.values() for name in names}
    agent = free_name(class_name(card.name, "Agent"), used)
    twin = free_name(f"{agent}Sync", used)
    types = SchemaTypes(used)
    methods = list(_methods(card, types))
    fingerprints = {id: one.fingerprint for id, one in schemas_of(card).items()}
    can_stream = bool(card.capabilities.streaming)
    parts = [
        *types.definitions,
        "\n".join(_agent_class(card, ref, agent, twin, methods, fingerprints, can_stream)),
        "\n".join(_twin_class(agent, twin, methods, can_stream)),
    ]
    return _module(card, "as typed calls", parts)


def types_module(card: AgentCard) -> str:
    """Return the module of the types alone: of the arguments and the results of each skill."""
    used = {name for names in _IMPORTED.values() for name in names}
    types = SchemaTypes(used)
    for skill, schemas in _skills(card):
        name = class_name(skill.id, "Skill")
        for schema, of in ((schemas.arguments, "Arguments"), (schemas.result, "Result")):
            if schema is None:
                continue
            wanted = free_name(f"{name}{of}", used)
            # The name is for the alias; an object takes it itself.
            used.discard(wanted)
            found = types.type_of(schema, wanted)
            if found != wanted:
                types.definitions.append(f"{free_name(wanted, used)} = {found}")
    if not types.definitions:
        raise ConfigError("the card says nothing of the arguments and results of its skills")
    return _module(card, "as types", types.definitions)


def _skills(card: AgentCard) -> Iterator[tuple[AgentSkill, SkillSchemas]]:
    if len(card.skills) > _MAX_SKILLS:
        raise ConfigError(f"the card has more than {_MAX_SKILLS} skills")
    schemas = schemas_of(card)
    seen: set[str] = set()
    for skill in card.skills:
        if skill.id not in seen:
            seen.add(skill.id)
            yield skill, schemas[skill.id]


def _methods(card: AgentCard, types: SchemaTypes) -> Iterator[_Method]:
    used = set(_OWN)
    for skill, schemas in _skills(card):
        name = snake_name(skill.id, "skill")
        while name in used or f"stream_{name}" in used:
            name += "_"
        used |= {name, f"stream_{name}"}
        title = class_name(skill.id, "Skill")
        result = "" if schemas.result is None else types.type_of(schemas.result, f"{title}Result")
        parameters = list(_parameters(schemas, types, title))
        yield _Method(skill, name, f"stream_{name}", parameters, "" if result == "Any" else result)


def _parameters(schemas: SkillSchemas, types: SchemaTypes, title: str) -> Iterator[_Parameter]:
    if not takes_arguments(schemas.arguments):
        # One text, where the card says of the result and not of the arguments; else anything.
        is_text = schemas.arguments is None and schemas.result is not None
        yield _Parameter("text", "str") if is_text else _Parameter("content", "Content")
        return
    used = {"self", "found"}
    for key, kind, is_required in types.parameters(schemas.arguments, title):
        name = free_name(snake_name(key, "argument"), used)
        yield _Parameter(name, kind, key, is_required)


def _agent_class(
    card: AgentCard,
    ref: str,
    agent: str,
    twin: str,
    methods: list[_Method],
    fingerprints: dict[str, str],
    can_stream: bool,
) -> Iterator[str]:
    yield f"class {agent}(TypedClient):"
    yield docstring(card.description or card.name, "    ")
    yield ""
    yield f"    agent: ClassVar[str] = {literal(ref)}"
    yield "    skills: ClassVar[dict[str, str]] = {"
    for id, digest in fingerprints.items():
        yield f"        {literal(id)}: {literal(digest)},"
    yield "    }"
    yield ""
    yield "    @property"
    yield f'    def sync(self) -> "{twin}":'
    yield '        """The same methods for code that is not async."""'
    yield f"        return {twin}(self)"
    for one in methods:
        yield ""
        yield from _call(one)
        if can_stream:
            yield ""
            yield from _stream(one)


def _call(one: _Method) -> Iterator[str]:
    yield f"    async def {one.declared(one.name)} -> {one.result or 'Answer'}:"
    yield docstring(one.about, "        ")
    id = literal(one.skill.id)
    if not one.result:
        yield f"        return await self.ask({id}, {one.content})"
        return
    yield f"        found: {one.result} = await self.call({id}, {one.content}, {one.result})"
    yield "        return found"


def _stream(one: _Method) -> Iterator[str]:
    is_text = one.result == "str"
    kind, call = ("AsyncIterator[str]", "stream_text") if is_text else ("Stream", "stream")
    yield f"    def {one.declared(one.stream_name)} -> {kind}:"
    what = "the text as it comes" if is_text else "the events of the task"
    yield docstring(f"Return {what}. {one.about}", "        ")
    yield f"        return self.{call}({literal(one.skill.id)}, {one.content})"


def _twin_class(agent: str, twin: str, methods: list[_Method], can_stream: bool) -> Iterator[str]:
    yield f"class {twin}(TypedSync[{agent}]):"
    yield f'    """The methods of `{agent}`, which wait."""'
    for one in methods:
        yield ""
        yield f"    def {one.declared(one.name)} -> {one.result or 'Answer'}:"
        yield docstring(one.about, "        ")
        yield f"        return self.run(self.agent.{one.name}({one.passed}))"
        if can_stream:
            kind, what = ("Events", "the events of the task")
            if one.result == "str":
                kind, what = ("Iterator[str]", "the text as it comes")
            yield ""
            yield f"    def {one.declared(one.stream_name)} -> {kind}:"
            yield docstring(f"Return {what}. {one.about}", "        ")
            yield f"        return self.iterate(self.agent.{one.stream_name}({one.passed}))"


def _module(card: AgentCard, what: str, parts: list[str]) -> str:
    about = f"The agent {card.name[:200]} {card.version[:50]}, {what}.\n\n" + (
        "Written by `dragoman gen` from the agent's card. Write it anew when the agent has "
        "changed; changes by hand are lost."
    )
    body = "\n\n\n".join(parts)
    head = [docstring(about, ""), ""]
    used = _names(body)
    for module, names in _IMPORTED.items():
        found = [name for name in names if name in used]
        if found:
            is_ours = module.startswith("dragoman")
            if is_ours and head[-1].startswith(("from typing", "from collections")):
                head.append("")
            head.append(f"from {module} import {', '.join(found)}")
    source = "\n".join(head) + f"\n\n\n{body}\n"
    if len(source) > _MAX_BYTES:
        raise ConfigError("the card is too large to write a module of it")
    harmless.check(source)
    return source


def _names(body: str) -> set[str]:
    """Return the names that code uses, in quoted types too; what its texts say is no use."""
    tree = ast.parse(body)
    quoted = [
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign | ast.Call)
        for place in ([node.annotation] if isinstance(node, ast.AnnAssign) else node.args[1:])
        for inner in ast.walk(place)
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
    ]
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for text in quoted:
        with contextlib.suppress(SyntaxError, ValueError):
            inside = ast.walk(ast.parse(str(text.value), mode="eval"))
            found |= {node.id for node in inside if isinstance(node, ast.Name)}
    return found
