"""The versions of the protocol as JSON: from the shapes of the wire to the model and back. All that
differs by version is here, as a `Dialect` or as a row of the tables of operations and errors.

No I/O; imports the waist alone. Begin with `operations.py` and `dialect.py`, then
`v1_0.py`. Dialects of single systems are in `house/`.
"""
