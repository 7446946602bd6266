"""Plain data with the semantics of A2A 1.0. Imports nothing of ours; every other package speaks it."""
