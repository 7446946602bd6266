"""What an author writes: an agent with skills, and the turn that a skill's code sees.

It runs on `engine` and calls other agents through `client`; it knows nothing of HTTP, the server or
the gateway. Begin with `agent.py`, then `skill.py` and `turn.py`; `asking.py` holds the questions
of a turn, `delegation.py` its calls of other agents.
"""
