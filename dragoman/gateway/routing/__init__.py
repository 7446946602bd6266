"""Chooses agents for a task. Decisions are pure functions of values.

`routing_options` reads what a caller specified, `shortlist` picks candidates, `routing.choose`
ranks them, `performance` holds what was observed of them; `hop_limit` refuses tasks in a loop.
Imports the model, errors and `registry.registered`. Begin with `routing.py`.
"""
