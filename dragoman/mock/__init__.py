"""Agents that play a script, for demonstrations and tests: well-behaved ones and others."""
