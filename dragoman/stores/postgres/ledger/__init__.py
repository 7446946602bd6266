"""Ledger and trust in PostgreSQL: orders, accounts, transfers, events of trust and their sums.

The writes of tasks bring effects (`task_orders.py`), which the server applies in the transaction of
the write: `apply_effects` of `0004_gateway.sql`. Transfers that came this way have no number until
they are sealed (`sealing.py`); every read of balances and transfers seals first. All other deeds
are applied and sealed at once (`effects.py`). Imports `connections.py`, `scopes.py` and `deeds.py`
of the room above, the interfaces and the pure modules of `stores/`. Begin with `book.py`.
"""
