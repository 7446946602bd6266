"""The operator API: what the console draws, for programs too; and `/admin/`. Begin with `paths.py`.

Tasks across agents and owners, their events, what waits for people, figures, processes, receivers
and the audit log. Operators see all, the admin of a tenant that tenant, a caller its own.
"""
