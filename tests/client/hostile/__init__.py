"""Answers that no good peer gives, made by rule from those that a good one does."""
