"""The checks of `dragoman doctor`: of an agent, of a file, of a database, and of what keeps
strangers out.

Each looks at one thing and gives one finding. Begin with `findings.py`.
"""
