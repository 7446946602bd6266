"""The gateway: registers agents, routes and forwards tasks to them, keeps trust and a ledger.

A task goes `router.py` (which agent), `delivery/` (there and back), `money/` and `trust/` (what
came of it); `registry/` knows the agents, `workflows/` joins tasks, `triggers/` begins them by
themselves, `rollouts/` tries new versions of agents, `api/` is the REST API.
Decisions are pure functions, effects are data that a store applies. It builds on `server/` and the
rooms below; `cli` builds on it, and `console` checks receipts with it. Begin with `gateway.py`, the
wiring, then `app.py`, the part of an app.
"""
