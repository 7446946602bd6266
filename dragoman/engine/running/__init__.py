"""Runs the author's code on one task: the worker, what replay returns to it, what it asks.

Imports the model, the waist, `stores.interface` and the log of the engine; nothing of how messages
arrive or are answered. Begin with `worker.py`; `replay.py` is what a second run is given.
"""
