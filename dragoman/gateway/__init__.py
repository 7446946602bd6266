"""The gateway: registers agents, routes and forwards tasks to them, keeps trust and a ledger."""
