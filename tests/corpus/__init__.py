"""The bad-input corpus: generated requests that must be refused, and the runner that judges.

Generators are seeded and deterministic; a case is named by the rule it breaks, so that a deviation
prints its reproduction. What a good request does is tested elsewhere.
"""
