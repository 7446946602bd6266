"""Ledger and trust in a SQLite file: orders, accounts, transfers, events of trust and their sums.

`effects.py` is the only code that writes; `task_orders.py` calls it in the transactions of tasks'
writes. Statements are in `ledger.sql` and `trust.sql`. Imports `schema.py` and `writer.py` of the
room above, the interfaces and the pure modules of `stores/`. Begin with `effects.py`.
"""
