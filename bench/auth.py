"""`python -m bench.auth`: what it costs a blocking send to know who asks.

One server for each way, on a processor of its own; rounds alternate between them, and the medians
are compared with the server without authentication, so that a busy machine favours none. Verdicts
are remembered, as they are for any caller that comes back.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from joserfc import jwk, jwt

from proof.overload.overload import own_processor, serving
from proof.overload.volley import closed_loop, sends
from proof.servers import Server

CALLERS = 64
TOKEN = "a-token-of-the-bench-0123456789"
ISSUER, AUDIENCE = "https://issuer.example.com", "bench"


def ways(folder: Path) -> dict[str, tuple[dict[str, str], str]]:
    """Return the settings of each server, and the token its callers bring."""
    key = jwk.RSAKey.generate_key(2048, {"kid": "k", "alg": "RS256", "use": "sig"}, private=True)
    keys = folder / "jwks.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 3600}
    token = jwt.encode({"alg": "RS256", "kid": "k", "typ": "at+jwt"}, claims, key)
    of_jwt = {
        "DRAGOMAN_AUTH": "jwt",
        "DRAGOMAN_JWT_ISSUER": ISSUER,
        "DRAGOMAN_JWT_AUDIENCE": AUDIENCE,
        "DRAGOMAN_JWT_KEYS": str(keys),
    }
    return {
        "none": ({}, ""),
        "bearer": ({"DRAGOMAN_AUTH_TOKEN": TOKEN}, TOKEN),
        "jwt": (of_jwt, token),
        "jwt and rate": (of_jwt | {"DRAGOMAN_RATE_LIMIT": "1000000/1s"}, token),
    }


class Figures(NamedTuple):
    """Medians of the rounds."""

    per_second: float
    # Microseconds of processor for one send: what a busy machine changes least.
    work: float


async def measure(rounds: int, seconds: float) -> dict[str, Figures]:
    """Return the figures of each way."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processor = stack.enter_context(own_processor())
        found: dict[str, list[Figures]] = {}
        async with contextlib.AsyncExitStack() as servers:
            running: dict[str, tuple[Server, str]] = {}
            for name, (environment, token) in ways(folder).items():
                plain = name.replace(" ", "-")
                server = Server(folder / f"{plain}.db", name=plain, environment=environment)
                running[name] = await servers.enter_async_context(serving(server, processor)), token
            for number in range(rounds + 1):
                for name, (server, token) in running.items():
                    before = server.process.processor_seconds()
                    tally = await closed_loop(server.port, sends(token), CALLERS, seconds)
                    assert not sum(tally.others.values()), f"{name}: {tally.others}"
                    work = (server.process.processor_seconds() - before) / len(tally.accepted) * 1e6
                    # The first round warms up.
                    if number:
                        found.setdefault(name, []).append(Figures(tally.goodput, work))
                print(f"round {number} of {rounds}", file=sys.stderr)
        return {name: Figures(*map(median, zip(*all, strict=True))) for name, all in found.items()}


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.auth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    found = asyncio.run(measure(options.rounds, options.seconds))
    print("| way | sends/s | ratio | processor µs a send | ratio |\n|---|---|---|---|---|")
    base = found["none"]
    for name, one in found.items():
        rate, work = one.per_second / base.per_second, one.work / base.work
        print(f"| {name} | {one.per_second:,.0f} | {rate:.3f} | {one.work:.0f} | {work:.3f} |")


if __name__ == "__main__":
    main()
