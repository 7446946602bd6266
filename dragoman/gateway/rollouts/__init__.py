"""Rollouts: a new version of an agent gets a share of its tasks, beside the old one (shadow) or in
its place (canary), until a rule or its owner promotes it or rolls it back.

What is said, compared and decided is pure (`definition.py`, `comparison.py`); `shadows.py` gives
copies of tasks to the new version, and `rollouts.py` counts. Begin with `rollouts.py`.
"""
