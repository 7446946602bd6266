"""The life of a task: accept, run, record, follow, recover.

The engine answers calls for one agent on one store. It imports the model, the waist (`service`,
`errors`, `config`, `telemetry`) and `stores.interface`; it knows no dialect and no transport. Begin
with `engine.py`, which joins the parts, then `sending` and `intake` for the way in, `log` for what
is recorded, and `running` for the author's code.
"""
