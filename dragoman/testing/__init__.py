"""Helpers for tests, of this package and of its users.

`promises/` states what a store promises, as tests that any store can run. `agents.py` serves
scripted agents, fake peers and your own; `scripted/` and `cassettes/` are behind it. `clock.py` is
a manual clock, `issuer.py` grants tokens, `plugin.py` has fixtures for pytest,
`processes.py` starts and ends servers, `load.py` makes load. Builds on `server/`, `client/` and
`stores/`; no other room but the command line imports it. Begin with `agents.py`.
"""
