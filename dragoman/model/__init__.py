"""Plain data with the semantics of A2A 1.0. Imports nothing of ours; all else speaks it."""
