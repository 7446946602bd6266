"""An agent that follows a script, for tests and demonstrations. It may break the protocol on
purpose.

`script.py` defines a script, `agent.py` is the ASGI app, `stage.py` one of its tasks, `delivery.py`
its streams. Not built on the engine, which keeps the rules. Begin with `script.py`.
"""
