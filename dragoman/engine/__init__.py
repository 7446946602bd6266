"""The task lifecycle, once: accept, run, record, follow."""
