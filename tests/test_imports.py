"""Who may import whom inside the package, read from the source and held to one table.

Imports go down, the two towers meet only at the named doors, and only the wiring picks
implementations. An import counts wherever it stands, in a function or under TYPE_CHECKING too:
the picture is about what a module knows, not about when it is loaded.
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "dragoman"

WAIST = ("service", "errors", "config", "model", "telemetry")
INSIDE = ("engine", "stores", "bus")
EDGE = ("transports", "client", "push", "dialects", "security")
WIRING = ("server", "gateway", "cli")
# What shows that the rest keeps its promises.
PROOFS = ("testing", "proof")

# Each part and what it may import besides itself, from the ground up. "stores" means anything in
# that folder, "stores.interface" that one module.
MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "model": (),
    "errors": ("model",),
    "config": ("model", "errors"),
    "service": ("model", "errors"),
    # What an operator sees; everyone above says something to it.
    # The names of secrets are one table, which knows nothing of ours.
    "telemetry": ("model", "errors", "config", "security.secret_names", "security.secret_text"),
    # inside
    "bus": WAIST,
    "stores": WAIST,
    "engine": (*WAIST, "stores.interface", "bus.interface"),
    # edge
    "dialects": WAIST,
    "security": WAIST,
    "transports": (*WAIST, "dialects", "security"),
    "push": (*WAIST, "dialects", "security", "stores.interface"),
    # The same envelopes are put on by a client and taken off by a server.
    "client": (*WAIST, "dialects", "security", "transports"),
    # wiring and people
    "server": (*WAIST, *INSIDE, *EDGE),
    # Agents of others, served as our own are.
    "gateway": (*WAIST, *INSIDE, *EDGE, "server"),
    # Agents that think with a model, and what they think with.
    "agents": (*WAIST, "engine", "stores.interface", *EDGE, "server", "dragoman"),
    # Agents of any kind for those who speak MCP.
    "mcp": (*WAIST, *EDGE, "server", "agents", "dragoman"),
    "console": (*WAIST, *INSIDE, *EDGE, "server", "gateway"),
    # Names and behaviour of other systems, on what is below.
    "compat": (*WAIST, "engine", "stores.interface", *EDGE, "server", "agents", "dragoman"),
    # Agents that play a part, for tests and for trying things out.
    "mock": (*WAIST, *EDGE, "server", "dragoman"),
    "cli": (
        *(*WAIST, *INSIDE, *EDGE, "server", "gateway", "agents", "mcp", "console", "mock", "proof"),
        "compat",
        "dragoman",
    ),
    # What runs the product from outside and reads its files.
    "proof": (*WAIST, *INSIDE, *EDGE, "server", "gateway", "dragoman", "testing"),
    # `dragoman` is the package's own __init__: the names a user imports.
    "dragoman": (*WAIST, *INSIDE, *EDGE, "server", "gateway", "agents"),
    "__main__": ("cli",),
    "testing": (*WAIST, *INSIDE, *EDGE, "server", "gateway", "console", "mock", "cli", "dragoman"),
}

DOORS = {("push", "stores.interface")}


class Import(NamedTuple):
    """One module of ours naming another; both without the leading `dragoman.`."""

    importer: str
    imported: str

    def __str__(self) -> str:
        return f"{self.importer} imports {self.imported}"


Rule = Callable[[Import], bool]


def part(module: str) -> str:
    """Return the folder or top-level file a module belongs to."""
    return module.split(".")[0]


def within(module: str, places: Iterable[str]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def implementation(module: str) -> bool:
    """Say whether a module is a store or a bus rather than the promise of one."""
    return part(module) in ("stores", "bus") and module not in ("stores.interface", "bus.interface")


# Each rule answers True for an import it refuses.


def goes_up(found: Import) -> bool:
    here = part(found.importer)
    return part(found.imported) != here and not within(found.imported, MAY_IMPORT.get(here, ()))


def leaves_the_model(found: Import) -> bool:
    return part(found.importer) == "model" and part(found.imported) != "model"


def crosses_the_towers(found: Import) -> bool:
    here, there = part(found.importer), part(found.imported)
    crosses = (here in INSIDE and there in EDGE) or (here in EDGE and there in INSIDE)
    return crosses and (here, found.imported) not in DOORS


def reaches_for_testing(found: Import) -> bool:
    return part(found.imported) == "testing" and part(found.importer) not in PROOFS


def looks_behind_an_interface(found: Import) -> bool:
    return part(found.importer) == "engine" and implementation(found.imported)


def picks_an_implementation(found: Import) -> bool:
    here = part(found.importer)
    if not implementation(found.imported) or here == part(found.imported):
        return False
    return here not in (*WIRING, *PROOFS)


RULES: tuple[Rule, ...] = (
    goes_up,
    leaves_the_model,
    crosses_the_towers,
    reaches_for_testing,
    looks_behind_an_interface,
    picks_an_implementation,
)


def name_of(path: Path) -> str:
    names = path.relative_to(PACKAGE).with_suffix("").parts
    if names[-1] == "__init__":
        names = names[:-1]
    return ".".join(names) or "dragoman"


def sources() -> dict[str, Path]:
    return {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(module: str, source: str, *, package: bool, modules: Iterable[str]) -> set[Import]:
    """Return what a module imports of ours.

    `from a import b` names the module `a.b` where there is one, and else something inside `a`.
    """
    known = set(modules)
    full = "dragoman" if module == "dragoman" else f"dragoman.{module}"
    around = full.split(".") if package else full.split(".")[:-1]
    named: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = around[: len(around) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                named.add(inner if inner.removeprefix("dragoman.") in known else origin)
    ours = {name for name in named if name == "dragoman" or name.startswith("dragoman.")}
    return {Import(module, name.removeprefix("dragoman.")) for name in ours}


@pytest.fixture(scope="module")
def imports() -> set[Import]:
    modules = sources()
    assert modules, "the package has no modules: this test looks in the wrong place"
    found: set[Import] = set()
    for module, path in modules.items():
        package = path.name == "__init__.py"
        text = path.read_text(encoding="utf-8")
        found |= imports_of(module, text, package=package, modules=modules)
    return found


def refused(rule: Rule, imports: Iterable[Import]) -> list[str]:
    return sorted(str(found) for found in imports if rule(found))


def test_every_part_has_a_row_in_the_table() -> None:
    assert {part(module) for module in sources()} <= MAY_IMPORT.keys()


def test_imports_go_down(imports: set[Import]) -> None:
    assert refused(goes_up, imports) == []


def test_the_model_imports_nothing_of_ours(imports: set[Import]) -> None:
    assert refused(leaves_the_model, imports) == []


def test_the_towers_meet_only_at_the_named_doors(imports: set[Import]) -> None:
    assert refused(crosses_the_towers, imports) == []


def test_nothing_imports_testing(imports: set[Import]) -> None:
    assert refused(reaches_for_testing, imports) == []


def test_the_engine_sees_only_the_interfaces_of_stores_and_buses(imports: set[Import]) -> None:
    assert refused(looks_behind_an_interface, imports) == []


def test_only_the_wiring_picks_implementations(imports: set[Import]) -> None:
    assert refused(picks_an_implementation, imports) == []


# fmt: off
MODULES = [
    "dragoman", "errors", "model", "model.task", "engine", "engine.engine", "engine.log",
    "stores", "stores.interface", "stores.sqlite", "stores.sqlite.writer", "bus.memory",
    "dialects", "dialects.v1_0", "push.outbox", "testing.stores",
    "server.app", "cli.serve",
]
# fmt: on


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (goes_up, "errors", "from dragoman.engine import log"),
        (goes_up, "dialects.v1_0", "def late():\n    import dragoman.server.app"),
        (goes_up, "server.app", "from dragoman import Agent"),
        (goes_up, "attic", "from dragoman.model import task"),
        (leaves_the_model, "model.task", "from ..errors import A2AError"),
        (leaves_the_model, "model.task", "from dragoman import errors"),
        (crosses_the_towers, "engine.engine", "from dragoman.dialects.v1_0 import encode"),
        (crosses_the_towers, "engine.engine", "from dragoman.dialects import record"),
        (crosses_the_towers, "push.outbox", "from ..stores.sqlite import writer"),
        (crosses_the_towers, "stores.sqlite.writer", "from ...dialects import v1_0"),
        (reaches_for_testing, "cli.serve", "import dragoman.testing.stores as promises"),
        (looks_behind_an_interface, "engine.log", "from dragoman.stores import sqlite"),
        (looks_behind_an_interface, "engine.log", "from dragoman.stores import Store"),
        (
            looks_behind_an_interface,
            "engine.log",
            "if TYPE_CHECKING:\n    from ..bus import memory",
        ),
        (picks_an_implementation, "dragoman", "from .stores.sqlite import Store"),
    ],
)
def test_an_offending_import_is_found(rule: Rule, module: str, source: str) -> None:
    package = module == "dragoman"
    found = imports_of(module, source, package=package, modules=MODULES)
    assert len(refused(rule, found)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.engine", "from dragoman.stores.interface import Store"),
        ("engine.engine", "from ..stores import interface\nfrom . import log"),
        ("push.outbox", "from dragoman.stores import interface"),
        ("stores.sqlite.writer", "from ...model.record import encode"),
        ("server.app", "from ..stores.sqlite.writer import Writer"),
        ("testing.stores", "import dragoman.stores.sqlite.writer"),
        ("model.task", "import msgspec\nfrom dragoman_extras import anything"),
    ],
)
def test_a_permitted_import_passes_every_rule(module: str, source: str) -> None:
    found = imports_of(module, source, package=False, modules=MODULES)
    assert [offence for rule in RULES for offence in refused(rule, found)] == []
