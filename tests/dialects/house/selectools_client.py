"""Runs the client of PyPI selectools: takes an address, a token and calls, prints what came back.

Started by a test in the library's own environment.
"""

import asyncio
import json
import sys
from typing import Any

from selectools.a2a import A2AClient, A2AError


async def main(address: str, token: str, calls: list[list[Any]]) -> None:
    client = A2AClient(address, auth_token=token or None)
    last = ""
    for name, *arguments in calls:
        if name == "forget_token":
            client = A2AClient(address)
            continue
        try:
            given = [last if argument == "<last>" else argument for argument in arguments]
            found = await getattr(client, name)(*given)
        except A2AError as error:
            print(json.dumps({"raised": str(error), "code": error.code}))
            continue
        shown = {
            member: getattr(found, member, None)
            for member in ("id", "context_id", "state", "text", "error", "name", "raw")
        }
        last = shown["id"] or last
        print(json.dumps(shown))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
