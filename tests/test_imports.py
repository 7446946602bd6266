"""Who may import whom inside the package, read from the source and held to one table.

Imports go down, and there is no ring. An import counts wherever it stands, in a function or under
TYPE_CHECKING too: the picture is about what a module knows, not about when it is loaded.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "dragoman"

WAIST = ("model", "errors", "service", "config", "shares", "telemetry")

# Each room and what it may import besides itself, from the ground up. A name stands for a room or
# for one module of it. `dragoman` is the package's own __init__: the names a user imports.
MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "model": (),
    "errors": ("model",),
    "service": ("model", "errors"),
    "config": ("model", "errors"),
    # What callers of a process share: HTTP and the engine count on the same accounts.
    "shares": ("model", "errors", "telemetry"),
    # The table of secret names knows nothing of ours, and log lines and spans hide by it.
    "telemetry": ("model", "errors", "config", "security.secret_names", "security.secret_text"),
    # keeps
    "stores": WAIST,
    # carries
    "dialects": WAIST,
    "egress": WAIST,
    # Messages and streams alone: what is behind them is others'.
    "tunnels": (),
    "security": (*WAIST, "egress"),
    "transports": (*WAIST, "dialects", "security"),
    # Limits that replicas count together are in the store.
    "http": (*WAIST, "dialects", "transports", "security", "stores.interface.limits"),
    "push": (*WAIST, "dialects", "security", "egress", "stores.interface"),
    # runs
    "engine": (*WAIST, "stores.interface"),
    "client": (*WAIST, "dialects", "transports", "security", "egress"),
    # Text from cards: it reads what the client knows of them, and calls nobody.
    "generation": (*WAIST, "client"),
    "authoring": (*WAIST, "engine", "client", "security", "egress"),
    "agents": (*WAIST, "authoring", "engine", "client", "security", "egress", "stores.interface"),
    # joins
    "server": (
        *(*WAIST, "authoring", "engine", "stores", "push"),
        *("http", "transports", "dialects", "security", "egress", "tunnels"),
    ),
    "gateway": (
        *(*WAIST, "server", "authoring", "engine", "client", "stores", "push"),
        *("http", "transports", "dialects", "security", "egress", "tunnels"),
    ),
    "mcp": (
        *(*WAIST, "server", "agents", "authoring", "client"),
        *("http", "transports", "security", "egress", "dragoman"),
    ),
    # An edge of agents and gateways alike: it knows neither engines nor stores.
    "openai": (*WAIST, "server", "http", "transports", "dialects"),
    "compat": (
        *(*WAIST, "server", "agents", "authoring", "engine", "client", "stores.interface"),
        *("http", "transports", "dialects", "security", "egress", "dragoman"),
    ),
    "dragoman": (*WAIST, "server", "agents", "authoring", "engine", "client", "security"),
    # shipped, for tests of ours and of others
    "testing": (
        *(*WAIST, "server", "authoring", "client", "push", "stores"),
        *("transports", "dialects", "security", "egress", "dragoman"),
    ),
    # people
    # A client of what the server answers: it draws JSON, and knows neither stores nor engines. It
    # checks receipts as anybody may who has one.
    "console": (
        *(*WAIST, "server", "authoring.form_fields", "testing.cassettes", "gateway.money.receipts"),
        *("http", "transports", "dialects", "security"),
    ),
    "cli": (
        *(*WAIST, "server", "gateway", "mcp", "compat", "agents", "authoring", "client"),
        *("testing", "engine", "stores", "push", "console", "openai", "generation", "tunnels"),
        *("http", "transports", "dialects", "security", "egress", "dragoman"),
    ),
    "__main__": ("cli",),
}

# What may know a kind of store: the room that picks one, and the tools that are for one kind alone.
PICKS_A_STORE = ("stores", "cli.operating.backup", "cli.operating.checks")
DRIVERS = ("apsw", "asyncpg", "nats")
KINDS = ("dragoman.stores.sqlite", "dragoman.stores.postgres", "dragoman.stores.memory")


class Import(NamedTuple):
    """One module of ours naming another; both without the leading `dragoman.`."""

    importer: str
    imported: str

    def __str__(self) -> str:
        return f"{self.importer} imports {self.imported}"


def room(module: str) -> str:
    """Return the folder or top-level file a module belongs to."""
    return module.split(".")[0]


def within(module: str, places: Iterable[str]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def goes_up(found: Import) -> bool:
    here = room(found.importer)
    return room(found.imported) != here and not within(found.imported, MAY_IMPORT.get(here, ()))


def name_of(path: Path) -> str:
    names = path.relative_to(PACKAGE).with_suffix("").parts
    if names[-1] == "__init__":
        names = names[:-1]
    return ".".join(names) or "dragoman"


def sources() -> dict[str, Path]:
    return {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def named(module: str, tree: ast.AST, *, package: bool, modules: Collection[str]) -> set[str]:
    """Return the modules that a syntax tree imports.

    `from a import b` names the module `a.b` where there is one, and else something inside `a`."""
    full = "dragoman" if module == "dragoman" else f"dragoman.{module}"
    around = full.split(".") if package else full.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = around[: len(around) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                found.add(inner if inner.removeprefix("dragoman.") in modules else origin)
    return found


def of_ours(module: str, found: Iterable[str]) -> set[Import]:
    """Return what a module imports of ours."""
    ours = {name for name in found if name == "dragoman" or name.startswith("dragoman.")}
    return {Import(module, name.removeprefix("dragoman.")) for name in ours} - {
        Import(module, module)
    }


def imports_of(module: str, source: str, *, package: bool, modules: Collection[str]) -> set[Import]:
    return of_ours(module, named(module, ast.parse(source), package=package, modules=modules))


@pytest.fixture(scope="module")
def names() -> dict[str, set[str]]:
    """All that each module imports."""
    modules = sources()
    assert modules, "the package has no modules: this test looks in the wrong place"
    return {
        module: named(
            module,
            ast.parse(path.read_text(encoding="utf-8")),
            package=path.name == "__init__.py",
            modules=modules.keys(),
        )
        for module, path in modules.items()
    }


@pytest.fixture(scope="module")
def imports(names: dict[str, set[str]]) -> set[Import]:
    return {one for module, found in names.items() for one in of_ours(module, found)}


def rings(imports: Iterable[Import]) -> Iterator[list[str]]:
    """Give each set of modules that all reach each other (Tarjan)."""
    graph: dict[str, list[str]] = {}
    for found in imports:
        graph.setdefault(found.importer, []).append(found.imported)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> Iterator[list[str]]:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in graph.get(module, ()):
            if target not in index:
                yield from visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            ring = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(ring) > 1:
                yield sorted(ring)

    for module in sorted(graph):
        if module not in index:
            yield from visit(module)


def test_every_room_is_in_the_picture() -> None:
    assert {room(module) for module in sources()} == MAY_IMPORT.keys()


def test_the_picture_itself_has_no_ring() -> None:
    rows = [
        Import(here, room(there))
        for here, places in MAY_IMPORT.items()
        for there in places
        # One table of `security`, which imports nothing of ours.
        if (here, room(there)) != ("telemetry", "security")
    ]
    assert list(rings(rows)) == []


def test_imports_go_down(imports: set[Import]) -> None:
    assert sorted(str(found) for found in imports if goes_up(found)) == []


def test_there_is_no_ring(imports: set[Import]) -> None:
    assert list(rings(imports)) == []


def test_only_the_wiring_and_the_tools_of_operators_know_a_kind_of_store(
    names: dict[str, set[str]],
) -> None:
    found: list[str] = []
    for module, name in ((one, name) for one, several in names.items() for name in several):
        if within(name, DRIVERS) and not within(module, ("stores",)):
            found.append(f"{module} imports {name}")
        if within(name, KINDS) and not within(module, PICKS_A_STORE):
            found.append(f"{module} imports {name}")
    assert sorted(found) == []


def test_the_package_does_not_know_its_proofs(names: dict[str, set[str]]) -> None:
    outside = ("proof", "bench", "tests", "examples")
    for module, found in names.items():
        assert not [name for name in found if within(name, outside)], module


MODULES = ["dragoman", "errors", "model.task", "engine.log", "stores.interface", "stores.sqlite"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors", "from dragoman.engine import log"),
        ("dialects.v1_0", "def late():\n    import dragoman.server.app"),
        ("server.app", "from dragoman import Agent"),
        ("attic", "from dragoman.model import task"),
        ("model.task", "from ..errors import A2AError"),
        ("engine.engine", "from dragoman.dialects.v1_0 import encode"),
        ("stores.sqlite.writer", "from ...dialects import v1_0"),
        ("engine.log", "from dragoman.stores import sqlite"),
        ("http.request", "if TYPE_CHECKING:\n    from dragoman.server.cards import ServedCard"),
    ],
)
def test_an_import_that_goes_up_is_found(module: str, source: str) -> None:
    found = imports_of(module, source, package=False, modules=MODULES)
    assert len([one for one in found if goes_up(one)]) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.engine", "from dragoman.stores.interface import Store"),
        ("engine.engine", "from ..stores import interface\nfrom . import log"),
        ("stores.sqlite.writer", "from ...model.record import encode"),
        ("server.app", "from ..stores.sqlite.writer import Writer"),
        ("model.task", "import msgspec\nfrom dragoman_extras import anything"),
    ],
)
def test_an_import_that_goes_down_passes(module: str, source: str) -> None:
    found = imports_of(module, source, package=False, modules=MODULES)
    assert not [one for one in found if goes_up(one)]


def test_a_ring_is_found_over_several_modules() -> None:
    found = [Import("a", "b"), Import("b", "c"), Import("c", "a"), Import("c", "d")]
    assert list(rings(found)) == [["a", "b", "c"]]
