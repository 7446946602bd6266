"""API keys: of callers in a file, of registered agents in a gateway's store.

How a key looks, what it opens, and which key a credential may make. Begin with `api_keys.py`.
"""
