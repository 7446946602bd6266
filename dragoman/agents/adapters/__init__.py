"""Agents of other frameworks as agents of ours, known by what they can do and not by an import."""
