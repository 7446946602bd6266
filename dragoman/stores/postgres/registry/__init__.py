"""The registered agents in PostgreSQL, their keys, and workflows.

Imports `connections.py`, `deeds.py` and `seals.py` of the room above, the model and the interfaces.
Begin with `agents.py`.
"""
