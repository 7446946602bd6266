"""The ledger stays whole while processes that spend are killed. Begin with `ledger.py`."""
