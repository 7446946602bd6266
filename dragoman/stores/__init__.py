"""Where tasks and what the gateway keeps are stored.

`interface/` states the promises; `memory/`, `sqlite/` and `postgres/` keep them, and share the pure
modules beside this one. `opening.py` picks a store by the settings, `tools.py` opens one for a
command, `copying/` brings one into another. Outside this room only checks and backups of the
command line know a kind of store. Imports the waist. Begin with `interface/tasks.py`.
"""
