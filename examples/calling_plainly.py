"""The same without async: every method of the client is there under `sync`.

    dragoman serve examples/weather.py
    python examples/calling_plainly.py localhost:8000 Oslo

Any other agent will do as well: a host, a URL or a card file.
"""

import sys

from dragoman import Client

if __name__ == "__main__":
    reference, city = sys.argv[1:3]
    with Client(reference).sync as agent:
        print(agent.send(city).text)
        for event in agent.stream(city):
            print(type(event).__name__)
