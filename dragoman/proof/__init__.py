"""The proofs: real processes are hurt on purpose, and what clients were told is held against what
the store holds. One module per proof, each with a `run` that returns its result; nothing of the
product imports this folder.
"""
