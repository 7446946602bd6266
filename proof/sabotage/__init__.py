"""The proofs can fail: each guard of the product is removed in turn, and a check has to notice.

`guards/` has the checks and the removals by what they are against. Begin with `sabotage.py`.
"""
