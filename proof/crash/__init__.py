"""What was acknowledged survives: kills, power cuts, frozen workers, restarts, repeated messages.

`callers.py` is the load, `checker.py` holds the file against what callers were told. Begin with
`crash.py`.
"""
