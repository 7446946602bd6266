"""Agents that think with a model: the loop, its models, tools, hooks and memory."""
