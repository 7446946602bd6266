"""The APIs of this server, drawn from their OpenAPI documents: routes, fields, and each to try."""

import re
import shlex
from collections import Counter
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlencode

import msgspec

from dragoman.authoring import form_fields
from dragoman.console.api import ApiFailed
from dragoman.console.visit import Answer, DrawnPage, Visit

# The documents, by the names they have in addresses.
_DOCUMENTS = {
    "console": "/api/v1/console/openapi.json",
    "gateway": "/api/v1/openapi.json",
}
_VERBS = ("get", "post", "put", "patch", "delete")
_BODY = "body"
_OTHER = "other"
_VALUE = re.compile(r"\{(\w+)\}")
_STREAM = "text/event-stream"


class DocumentedRoute(NamedTuple):
    """One route of a document, as the page shows it."""

    name: str
    verb: str
    path: str
    group: str
    summary: str
    parameters: list[dict[str, Any]]
    # The schema of the body; None: it takes none.
    body: Any
    # What it answers, by status: words and the schema.
    answers: list[tuple[str, str, Any]]
    streams: bool
    # What is filled in to try it.
    schema: dict[str, Any]
    # The objects that it takes and answers, by name.
    objects: dict[str, Any]


async def show(visit: Visit) -> Answer:
    """Draw all routes, or one to try."""
    context = await _context(visit)
    chosen: DocumentedRoute | None = context["chosen"]
    if chosen is not None:
        context["form"] = form_fields.fields(chosen.schema)
    return DrawnPage("docs.html", chosen.summary if chosen else "API", context)


async def send(visit: Visit) -> Answer:
    """Ask what was filled in, with the visitor's own credential, and show the exchange."""
    context = await _context(visit)
    chosen: DocumentedRoute | None = context["chosen"]
    if chosen is None:
        raise ApiFailed(404, "There is no such route.")
    own = {
        f"{form_fields.ROOT}{name[len(chosen.name) + 1 :]}": values
        for name, values in (visit.form or {}).items()
        if name.startswith(f"{chosen.name}:")
    }
    given = form_fields.read(chosen.schema, own)
    context["form"] = given.form
    takes_any = bool(chosen.schema["properties"])
    if given.errors and takes_any:
        return DrawnPage("docs.html", chosen.summary, context, status=422)
    context["exchange"] = await _exchange(visit, chosen, given.value if takes_any else {})
    return DrawnPage("docs.html", chosen.summary, context)


async def _context(visit: Visit) -> dict[str, Any]:
    names = ["console", *(["gateway"] if visit.me.get("hasRegistry") else [])]
    api = visit.query.get("api", "console")
    if api not in names:
        raise ApiFailed(404, "There is no such API.")
    document = (await visit.api.send("GET", _DOCUMENTS[api])).object
    operations = _operations(document)
    groups: dict[str, list[DocumentedRoute]] = {}
    counts = Counter(one.group for one in operations)
    # Those that are alone come together at the end.
    for one in sorted(operations, key=lambda one: counts[one.group] == 1):
        groups.setdefault(one.group if counts[one.group] > 1 else _OTHER, []).append(one)
    name = visit.query.get("op", "")
    chosen = next((one for one in operations if one.name == name), None)
    if name and chosen is None:
        raise ApiFailed(404, "There is no such route.")
    return {
        "apis": names,
        "api": api,
        "about": document.get("info", {}),
        "address": _DOCUMENTS[api],
        "groups": groups,
        "chosen": chosen,
        "form": None,
        "exchange": None,
    }


def _operations(document: dict[str, Any]) -> list[DocumentedRoute]:
    components: Any = document.get("components", {})
    return [
        _operation(verb.upper(), path, cast("dict[str, Any]", found[verb]), components)
        for path, found in document.get("paths", {}).items()
        for verb in _VERBS
        if verb in found
    ]


def _operation(verb: str, path: str, said: dict[str, Any], components: Any) -> DocumentedRoute:
    parameters = cast("list[dict[str, Any]]", said.get("parameters", []))
    content = cast("dict[str, Any]", said.get("requestBody", {}).get("content", {}))
    body = next((one.get("schema", {}) for one in content.values()), None)
    properties = {one["name"]: one["schema"] for one in parameters if one["in"] != "header"}
    required = [one["name"] for one in parameters if one.get("required")]
    if body is not None:
        properties[_BODY] = body
        required += [_BODY] if said["requestBody"].get("required") else []
    answers = cast("dict[str, dict[str, Any]]", said.get("responses", {}))
    return DocumentedRoute(
        name=said["operationId"],
        verb=verb,
        path=path,
        group=said["tags"][0],
        summary=said["summary"],
        parameters=parameters,
        body=body,
        answers=[
            (status, one.get("description", ""), _schema(one)) for status, one in answers.items()
        ],
        streams=any(_STREAM in one.get("content", {}) for one in answers.values()),
        schema={
            "type": "object",
            "properties": properties,
            "required": required,
            "components": components,
        },
        objects=_objects([parameters, body, answers], components.get("schemas", {})),
    )


def _objects(used: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Return the objects that a route takes or answers, and those in them, in their order."""
    found: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            place: Any = cast("dict[str, Any]", value).get("$ref")
            name = place.rpartition("/")[2] if isinstance(place, str) else ""
            if name in known and name not in found:
                found.add(name)
                collect(known[name])
            for inner in cast("dict[str, Any]", value).values():
                collect(inner)
        elif isinstance(value, list):
            for inner in cast("list[Any]", value):
                collect(inner)

    collect(used)
    return {name: schema for name, schema in known.items() if name in found}


def _schema(answer: dict[str, Any]) -> Any:
    content = cast("dict[str, Any]", answer.get("content", {}))
    return next((one.get("schema") for one in content.values()), None)


async def _exchange(visit: Visit, chosen: DocumentedRoute, value: Any) -> dict[str, Any]:
    """Ask, and return what went out and what came back. A stream is only told how to be read: it
    has no end."""
    given = cast("dict[str, Any]", value)
    path = _VALUE.sub(lambda found: quote(str(given[found[1]]), safe=""), chosen.path)
    query = {
        one["name"]: given[one["name"]]
        for one in chosen.parameters
        if one["in"] == "query" and one["name"] in given
    }
    body = given.get(_BODY)
    words = ["curl", *(["-N"] if chosen.streams else []), "-X", chosen.verb]
    if body is not None:
        text = msgspec.json.encode(body).decode()
        words += ["-H", "Content-Type: application/json", "-d", text]
    url = visit.origin + path + (f"?{urlencode(query)}" if query else "")
    curl = visit.command(shlex.join([*words, url]))
    exchange: dict[str, Any] = {"curl": curl, "status": 0, "answer": None}
    if chosen.streams:
        return exchange
    answer = await visit.api.send(chosen.verb, path, body=body, query=query)
    shown = answer.value if answer.value is not None else answer.body.decode("utf-8", "replace")
    return exchange | {"status": answer.status, "answer": shown}
