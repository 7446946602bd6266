"""Plain data with the semantics of A2A 1.0, used by all other rooms. Imports none of them.

`task.py`, `message.py` and `artifact.py` are the protocol's objects, `operations.py` what a caller
can request, `events.py` what a log contains and `record.py` its JSON on disk. Begin with `task.py`.
"""
