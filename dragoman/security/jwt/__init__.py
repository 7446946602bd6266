"""Callers that bring JSON Web Tokens: form, claims, signatures, and the keys of issuers.

Needs the extra `jwt`. Begin with `authenticator.py`.
"""
