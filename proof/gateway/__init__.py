"""A gateway and the agents behind it are killed under load: tasks end once, and are paid once.

Begin with `gateway.py`; `site.py` starts the processes, `checks.py` reads their files afterwards.
"""
