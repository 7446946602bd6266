"""Two agents of different kinds behind one gateway, called by clients of four kinds, for money.

    python examples/gateway.py

The agents are one of PyPI a2a-sdk and one as NEXUS describes them, the clients a2a-sdk,
@a2a-js/sdk, the curl of the NEXUS document and what corvid agents do. `gateway_peers/calling.py`
says where the libraries are looked for.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from gateway_peers.calling import agents, asked, callers, started, trust_of

# What their owner wants for a task, in credits; and how owners say who they are.
PRICES = {"Shout": 10, "Reverse": 1.11}
SELLER, BUYER = "seller-0123456789abcdef", "buyer-0123456789abcdef"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        tokens = Path(folder, "tokens.toml")
        tokens.touch(mode=0o600)
        tokens.write_text(f'[seller]\ntoken = "{SELLER}"\n[buyer]\ntoken = "{BUYER}"\n')
        where = ["--listen", "127.0.0.1:0", "--store", f"{folder}/gateway.db", "--allow-private"]
        command = ["-m", "dragoman", "gateway", *where, "--auth-tokens", str(tokens)]
        gateway = running.enter_context(started(sys.executable, *command))
        api = f"{gateway}/api/v1"
        registered = {}
        for name, command in agents().items():
            address = running.enter_context(started(*command))
            body = {"name": name, "endpoint": address, "pricePerTask": PRICES[name]}
            registered[name] = asked("POST", f"{api}/agents", SELLER, body)["data"]
        calls = callers()
        for kind, call in calls.items():
            for name, agent in registered.items():
                answer = call(f"{gateway}/a2a/{agent['slug']}", BUYER, f"hello from {kind}")
                print(f"{kind} to {name}: {answer}")
        for name, agent in registered.items():
            trust = trust_of(api, agent["id"], BUYER, len(calls))
            print(f"{name} is trusted {trust['trustScore']} of 100 ({trust['badge']})")
        for name, token in (("buyer", BUYER), ("seller", SELLER)):
            print(f"{name} has {asked('GET', f'{api}/billing/balance', token)['data']['balance']}")


if __name__ == "__main__":
    main()
