"""Trust: what was observed of agents, and the scores computed from it.

`observations` decides what becomes an event, `counting` what of it counts, `scores` what it comes
to: all pure. `recording` has the store apply decisions, `trust` follows the events in a running
gateway, `export` checks and writes the log. Imports the store's interfaces, `money/`, and what
`registry/` and `routing/` say of an agent; no store. Begin with `observations.py`, then `trust.py`.
"""
