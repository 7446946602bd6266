"""Adapters: agents of other frameworks, functions, classes and programs as agents.

`detect.py` chooses an adapter by the members of an object, without importing any framework. The
adapters share `wrapping.py`. Begin with `detect.py`.
"""
