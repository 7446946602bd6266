"""Where tasks and what the gateway keeps are stored.

`interface/` states the promises; `memory/` and `sqlite/` keep them. `opening.py` picks a store by
the settings; outside this room only the command line's tools know SQLite. Imports the waist. Begin
with `interface/tasks.py`.
"""
