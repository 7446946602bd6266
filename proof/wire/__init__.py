"""Streams and posts over connections that break: cut, slow, trickling or failing at any byte.

Begin with `resume.py`; `chaos.py` is the proxy that cuts, `receivers.py` the receivers that fail.
"""
