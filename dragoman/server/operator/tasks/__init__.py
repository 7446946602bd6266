"""Tasks for operators and owners: lists and search, one task with its events, trees across agents,
those that show nothing, and what there is most of. Begin with `endpoints.py`."""
