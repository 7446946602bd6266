"""Replicas on PostgreSQL: whatever part dies, nothing acknowledged is lost. Begin with
`cluster.py`.

`site.py` is a server of PostgreSQL with its replicas, `cable.py` and `namespaces.py` what lies
between them, `database.py` reads what is stored with none of the store's code. The sections, each
of which hurts one thing, are in `replicas.py`, `servers.py`, `standby.py`, `wakeups.py`,
`promises.py` and `money.py`.
"""
