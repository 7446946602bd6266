"""The registered agents in a SQLite file, their keys, and workflows.

Imports `schema.py` and `seals.py` of the room above, the model and the interfaces. Begin with
`agents.py`.
"""
