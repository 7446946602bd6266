"""Nothing dials out but the egress guard: read from the source of every module.

The proofs and the load generator are the exception: they hang up on servers of their own in ways no
client would, so they open plain connections, and only to a constant that is this machine.
"""

import ast
import re
from pathlib import Path
from typing import TypeGuard

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "dragoman"
# What dials, for the one module that asks it to.
GUARD = PACKAGE / "egress" / "dial.py"
EGRESS = PACKAGE / "egress" / "egress.py"
# The load generator for servers of this machine, and what starts servers on it.
LOCAL = (PACKAGE / "testing" / "load.py", PACKAGE / "testing" / "servers.py")
PROOF = PACKAGE.parent / "proof"
# Takes the place of a library whose callers may bring a transport of httpx of their own.
PARITY = PACKAGE / "compat" / "selectools" / "transport.py"
# Connects to a socket of this process by its path: a gRPC client whose connections the guard dials.
CHANNELS = PACKAGE / "egress" / "grpc_channels.py"
# Frames the messages of connections that the guard dials; of the library it has the part without
# sockets.
FRAMES = PACKAGE / "tunnels" / "websocket.py"
LOOPBACK = "127.0.0.1"
CLIENTS = (
    *("aiohttp", "httpx", "httpcore", "requests", "urllib3", "niquests", "pycurl", "websockets"),
    *("urllib.request", "http.client", "ftplib", "smtplib", "telnetlib", "xmlrpc.client"),
)
# What opens a connection on a loop, a socket or a module of them.
DIALS = {"open_connection", "open_unix_connection", "create_connection", "create_unix_connection"}
DIALS |= {"sock_connect", "connect_ex", "urlopen", "insecure_channel", "secure_channel"}
# A word of all that is looked for: a source without any is not read further.
MARKS = re.compile("|".join({*(name.partition(".")[0] for name in CLIENTS), *DIALS, "HOST"}))


def offences(source: str, *, dials_home: bool = False) -> list[str]:
    """Return what a module does that only the guard may; dialling `HOST` may be excepted."""
    found: list[str] = []
    tree = ast.parse(source if MARKS.search(source) else "")
    home = {node.func for node in ast.walk(tree) if dials_home and is_home_call(node)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from http import client` names a module too.
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            names += [alias.name for alias in node.names if alias.name in DIALS]
        elif isinstance(node, ast.Attribute) and node not in home:
            names = [node.attr] if node.attr in DIALS else []
        elif isinstance(node, ast.Assign) and assigns_host(node):
            value = node.value.value if isinstance(node.value, ast.Constant) else None
            names = ["HOST"] if dials_home and value != LOOPBACK else []
        found += [name for name in names if name in {*DIALS, "HOST"} or is_client(name)]
    return found


def is_home_call(node: ast.AST) -> TypeGuard[ast.Call]:
    """Say whether a call names `HOST` as what it dials."""
    match node:
        case ast.Call(args=[ast.Name(id="HOST"), *_]):
            return True
        case ast.Call(args=[ast.Tuple(elts=[ast.Name(id="HOST"), *_]), *_]):
            return True
        # A channel of gRPC wants both in one text.
        case ast.Call(
            args=[ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name(id="HOST")), *_]), *_]
        ):
            return True
        # The loop's own wants to know first what is made of the connection.
        case ast.Call(args=[_, ast.Name(id="HOST"), *_]):
            return True
        case ast.Call(args=[_, ast.Tuple(elts=[ast.Name(id="HOST"), *_])]):
            return True
        # A socket that is connected already.
        case ast.Call(args=[], keywords=[ast.keyword(arg="sock")]):
            return True
    return False


def assigns_host(node: ast.Assign) -> bool:
    return any(isinstance(name, ast.Name) and name.id == "HOST" for name in node.targets)


def offences_of(path: Path) -> list[str]:
    return offences(
        path.read_text(encoding="utf-8"), dials_home=path in LOCAL or path.is_relative_to(PROOF)
    )


def is_client(module: str) -> bool:
    return any(module == client or module.startswith(f"{client}.") for client in CLIENTS)


def test_only_the_guard_dials_out() -> None:
    modules = sorted([*PACKAGE.rglob("*.py"), *PROOF.rglob("*.py")])
    assert GUARD in modules
    found = {
        path.relative_to(PACKAGE.parent).as_posix(): wrong
        for path in modules
        if path not in (GUARD, PARITY, CHANNELS, FRAMES) and (wrong := offences_of(path))
    }
    assert found == {}
    assert set(offences_of(GUARD)) == {"sock_connect", "create_connection"}
    assert offences_of(CHANNELS) == ["insecure_channel"]
    assert not {*offences_of(FRAMES)} & DIALS and "websockets.asyncio" not in imports_of(FRAMES)
    assert 'insecure_channel(\n            f"unix:{path}"' in CHANNELS.read_text(encoding="utf-8")


def imports_of(path: Path, *, about: str = "") -> set[str]:
    """Return what a module imports; nothing, unless it has a word."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source if about in source else "")
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_only_the_client_asks_the_guard_to_dial() -> None:
    dialling = {
        path
        for path in PACKAGE.rglob("*.py")
        if "dragoman.egress.dial" in imports_of(path, about="dial")
    }
    assert dialling == {EGRESS}


def test_there_is_no_second_client_to_keep_in_step() -> None:
    """Neither in the package nor in its tests: what is not needed is not installed."""
    sources = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "tests").rglob("*.py")]
    assert not [path for path in sources if "aiohttp" in imports_of(path, about="aiohttp")]


@pytest.mark.parametrize(
    "source",
    [
        "import aiohttp",
        "import aiohttp.abc as abc",
        "from aiohttp import ClientSession",
        "def late():\n    import httpx",
        "import urllib.request",
        "from urllib import request",
        "from http import client",
        "from http.client import HTTPSConnection",
        "from asyncio import open_connection",
        "import asyncio\nasyncio.open_connection('a', 1)",
        "async def f(loop): await loop.create_connection(None, 'a', 1)",
        "import socket\nsocket.create_connection(('a', 1))",
    ],
)
def test_another_way_out_is_found(source: str) -> None:
    assert offences(source)


@pytest.mark.parametrize(
    "source",
    ["from urllib.parse import urlsplit", "from http import HTTPStatus", "import asyncio"],
)
def test_what_does_not_dial_is_left_alone(source: str) -> None:
    assert offences(source) == []


HOME = 'HOST = "127.0.0.1"\nimport asyncio\nasyncio.open_connection(HOST, 1)'


def test_a_proof_dials_this_machine_and_no_other() -> None:
    assert offences(HOME, dials_home=True) == []
    assert offences(HOME) == ["open_connection"]
    assert offences(HOME.replace("127.0.0.1", "10.0.0.1"), dials_home=True) == ["HOST"]
    assert offences(HOME.replace("(HOST", "(host"), dials_home=True) == ["open_connection"]
    channel = 'HOST = "127.0.0.1"\ngrpc.aio.insecure_channel(f"{HOST}:1")'
    assert offences(channel, dials_home=True) == []
    assert offences(channel.replace("{HOST", "{host"), dials_home=True) == ["insecure_channel"]
    assert offences("import aiohttp", dials_home=True) == ["aiohttp"]
