"""Commands for the operator of a store: tasks, ledger, trust, keys, audit log, vault, pushes,
backup and `doctor`; and what is about the command itself: `config`, `completion`.

They look into a store's file, also while servers use it. Begin with `tasks.py`.
"""
