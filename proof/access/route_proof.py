"""The table of routes, asked of servers that are processes of their own."""

import sys
from pathlib import Path

from dragoman.testing.load import HOST
from proof.access import tenancy_agent
from proof.access.bindings import Wire
from proof.access.callers import write_keys
from proof.access.route_cells import RouteScene, gather
from proof.access.route_table import of_app
from proof.access.route_things import GatewayThings, Things
from proof.results import Progress
from proof.servers import Server

AGENT = Path(tenancy_agent.__file__)


class _Gateway(Server):
    """A gateway."""

    def command(self) -> list[str]:
        """Return what is run."""
        serve = [sys.executable, "-m", "dragoman", "gateway"]
        return [*serve, "--listen", f"{HOST}:0", "--store", str(self.store)]


def knowing(folder: Path) -> dict[str, str]:
    """Return the settings of a server that knows the callers."""
    return {
        "DRAGOMAN_AUTH": "api-key",
        "DRAGOMAN_KEYS": str(write_keys(folder / "keys.json")),
        "DRAGOMAN_ALLOW_PRIVATE": "true",
        "DRAGOMAN_OPENAI": "true",
        # Hundreds of requests without a credential are the point here.
        "DRAGOMAN_RATE_LIMIT_FAILURES": "off",
    }


async def ask_routes(folder: Path, progress: Progress) -> tuple[int, list[str]]:
    """Ask every cell of a server and of a gateway; return their number and what is wrong."""
    settings = knowing(folder)
    selling = {"DRAGOMAN_ESCROW": "3600", "DRAGOMAN_PAYMENT_SECRET": "a secret of this proof"}
    upstream = Server(folder / "upstream.db", agent=AGENT, name="upstream")
    server = Server(folder / "routes.db", agent=AGENT, name="routes", environment=settings)
    gateway = _Gateway(folder / "gateway.db", name="gateway", environment=settings | selling)
    try:
        for one in (upstream, server, gateway):
            await one.start()
        progress("asking at the routes of a server")
        served = await gather(RouteScene(Things(Wire(server.port)), of_app("server")))
        progress("asking at the routes of a gateway")
        things = GatewayThings(Wire(gateway.port), f"http://{HOST}:{upstream.port}")
        await things.open()
        found = await gather(RouteScene(things, of_app("gateway")))
    finally:
        for one in (upstream, server, gateway):
            one.kill()
    return served[0] + found[0], [*served[1], *found[1]]
