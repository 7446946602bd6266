"""The proofs: real processes are hurt on purpose, and what clients were told is held against what
the store holds.

One room for what is hurt, one module per proof with a `run` that returns its result. They may use
all of `dragoman`; nothing of the product imports them. `README.md` lists them; begin with
`__main__.py`.
"""
