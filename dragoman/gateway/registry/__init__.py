"""The registered agents: who owns them, what their cards say, whether they are there, their keys.

`registry.py` is what the rest of the gateway uses; below it `health.py` checks agents and
`agent_cache.py` holds them in memory, equal to the store. Cards are judged by pure functions in
`card_pinning.py` and `card_review.py`. Imports the client's cards and credentials, egress,
security and the store's interfaces; nothing of the other rooms of the gateway. Begin with
`registered.py`, then `registry.py`.
"""
