"""`python -m bench.auth`: what it costs a blocking send to know who asks.

One server for each way, on a processor of its own; rounds alternate between them, and the medians
are compared with the server that asks nobody, so that a busy machine favours none. Verdicts are
remembered, as they are for any caller that comes back.
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

from joserfc import jwk, jwt

from dragoman.proof.harness import Server
from dragoman.proof.overload import own_processor, serving
from dragoman.proof.volley import closed_loop, sends

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


async def measure(rounds: int, seconds: float) -> dict[str, float]:
    """Return sends per second by way: the median of the rounds."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processor = stack.enter_context(own_processor())
        found: dict[str, list[float]] = {}
        async with contextlib.AsyncExitStack() as servers:
            running: dict[str, tuple[Server, str]] = {}
            for name, (environment, token) in ways(folder).items():
                plain = name.replace(" ", "-")
                server = Server(folder / f"{plain}.db", name=plain, environment=environment)
                running[name] = await servers.enter_async_context(serving(server, processor)), token
            for number in range(rounds + 1):
                for name, (server, token) in running.items():
                    tally = await closed_loop(server.port, sends(token), CALLERS, seconds, 0.3)
                    assert not tally.others, f"{name}: {tally.others}"
                    # The first round warms up.
                    if number:
                        found.setdefault(name, []).append(tally.goodput)
                print(f"round {number} of {rounds}", file=sys.stderr)
        return {name: median(rates) for name, rates in found.items()}


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.auth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    rates = asyncio.run(measure(options.rounds, options.seconds))
    print("| way | sends/s | of those without |\n|---|---|---|")
    for name, rate in rates.items():
        print(f"| {name} | {rate:,.0f} | {rate / rates['none']:.3f} |")


if __name__ == "__main__":
    main()
