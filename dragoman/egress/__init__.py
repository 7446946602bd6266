"""The one client that dials out: webhooks, cards, keys, files, other agents.

Every address is checked when it is dialled and the connection goes to that address; redirects pass
the same checks. Imports `model`, `errors` and the hosts of `config` alone. Begin with `egress.py`,
then `dial.py`.
"""
