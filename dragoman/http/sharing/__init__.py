"""Rates that all replicas of a service count together, where the store can: `shared_buckets.py` is
what `http/rates.py` is for one process, `drawing.py` asks the store for portions."""
