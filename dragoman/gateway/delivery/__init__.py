"""Delivers messages of tasks to registered agents, and records their answers.

`Forwarding` is the agent code that the engine runs. It makes a `Delivery` (or a `Race` of several
agents), which calls agents by `AgentCall` and has an `AnswerRelay` record what they answer.
`retries` decides what may follow a failure; `upstreams` keeps connections, slots, circuits and the
retry budget per agent. Imports the engine, the client, `router.py`, `registry/` and
`routing/`.
Begin with `forwarding.py`, then `delivery.py`.
"""
