"""Triggers: tasks that begin by themselves, at a time or when another program posts something.

What a trigger says and when it is due are pure (`definition.py`, `schedule.py`, `template.py`);
`triggers.py` begins the tasks. Begin with `triggers.py`.
"""
