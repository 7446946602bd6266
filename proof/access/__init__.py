"""Who may do what: the tables of routes and operations by caller, asked of real servers.

`routes.toml` and `matrix.toml` are the tables; begin with `tenancy.py`, which asks all of them.
"""
