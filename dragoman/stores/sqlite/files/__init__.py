"""The files of a SQLite store: opening them, what lies beside them, copies, noticing a loss.

Imports the schema, the workers and the writer of the room above. Begin with `opening.py`.
"""
