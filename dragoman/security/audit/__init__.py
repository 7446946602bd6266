"""The audit log: refusals, what operators did, keys and cards that changed.

Each line names the hash of the one before; several processes append to the same files. Begin with
`log.py`.
"""
