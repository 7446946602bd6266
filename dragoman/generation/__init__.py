"""Python modules written from agent cards: typed calls (`dragoman gen client`) and the types alone
(`dragoman gen types`).

A card is the text of a stranger. What comes of it is checked before it is written
(`generation/harmless.py`): whatever a card says, its module defines types and calls its own agent.
"""
