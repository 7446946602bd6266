"""Workflows: graphs of steps, each of them a task of a registered agent.

`plan.py` is pure, `runs.py` is the code that the engine runs, `workflows.py` stores definitions and
begins runs. Imports the engine, the store's interfaces, `registry/` and
`delivery/`. Begin with `plan.py`.
"""
