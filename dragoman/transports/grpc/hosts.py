"""What is known of rpcs before one comes: the packages of the service, by version, and hosts that
lead to one of several agents. An rpc of 0.3 has neither a path nor a tenant to name an agent with,
but it says which host it was sent to.
"""

import re

from dragoman.model.patterns import late_pattern

# Kinds of paths that agents have: those of this process, and those of a gateway.
_HOST = late_pattern(r"([a-z0-9-]{1,63})\.(agents|a2a)\.([^:]+)(?::[0-9]+)?\Z", re.ASCII)


PACKAGES = {"1.0": "lf.a2a.v1", "0.3": "a2a.v1"}
# The full names of the service.
SERVICES = [f"{package}.A2AService" for package in PACKAGES.values()]


def host_of(path: str, domain: str) -> str:
    """Return the host of the agent at a path, `a2a/NAME`: `NAME.a2a.DOMAIN`."""
    kind, _, name = path.partition("/")
    return f"{name}.{kind}.{domain}"


def path_at(authority: str, domain: str) -> str:
    """Return the path of the agent that a host leads to, `/a2a/NAME`; empty: it leads to none."""
    found = _HOST.match(authority.lower())
    return f"/{found[2]}/{found[1]}" if found is not None and found[3] == domain.lower() else ""
