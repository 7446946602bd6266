"""An agent with selectools' methods, served and called with selectools' names from our package.

Run: python examples/from_selectools.py
"""

from types import SimpleNamespace

import httpx

from dragoman.compat.selectools import A2AClient, A2AServer


class Shouter:
    """Has what selectools' own `Agent` has; with one of those, only the import changes."""

    config = SimpleNamespace(name="shouter")
    tools = (SimpleNamespace(name="shout", description="Says it louder."),)

    def clone_for_isolation(self):
        return Shouter()

    def run(self, messages):
        return SimpleNamespace(content=messages[0].content.upper())


server = A2AServer(agent=Shouter(), auth_token="sk-demo-token-of-mine")
transport = httpx.ASGITransport(app=server)
client = A2AClient("http://shouter", auth_token="sk-demo-token-of-mine", transport=transport)
print(client.discover_sync().name, "has", [skill.id for skill in client.discover_sync().skills])
print(client.send_task_sync("hello").text)
