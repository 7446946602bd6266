"""Money: what tasks cost, the ledger as users see it, purchases, escrow and receipts.

What happens to a price is decided in pure functions (`order_rules`, `settlement`), which return
effects; `ledger` reads facts, lets them decide and has the store apply the effects. Imports the
store's interfaces, pure functions of `trust/`, and of `delivery/` what a forwarded task is; no
store. Begin with `order_rules.py`, then `ledger.py`.
"""
