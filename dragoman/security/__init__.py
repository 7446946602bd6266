"""Who asks, what they may, what is sealed, what is recorded.

Ways to authenticate, keys and their scopes, signatures of cards, secrets at rest and in texts, and
the audit log. It may import the waist and `egress/`, by which keys of issuers are fetched. Begin
with `authentication.py`.
"""
