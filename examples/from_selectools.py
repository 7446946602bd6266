"""An agent with selectools' methods, served and called with selectools' names from our package.

Run: python examples/from_selectools.py
"""

from types import SimpleNamespace as Object

import httpx

from dragoman.compat.selectools import A2AClient, A2AServer

TOKEN = "sk-demo-token-of-mine"
# Has what selectools' own `Agent` has; with one of those, only the import above changes.
agent = Object(config=Object(name="shouter"), tools=[Object(name="shout", description="Shouts.")])
agent.clone_for_isolation = lambda: agent
agent.run = lambda messages: Object(content=messages[0].content.upper())

server = A2AServer(agent=agent, auth_token=TOKEN)
client = A2AClient("http://shouter", TOKEN, transport=httpx.ASGITransport(app=server))
card = client.discover_sync()
print(card.name, "has", [skill.id for skill in card.skills])
print(client.send_task_sync("hello").text)
