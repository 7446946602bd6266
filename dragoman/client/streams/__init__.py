"""One task followed through every cut, without an event twice or left out.

Positions where the peer has them, else the difference to what was shown; and the clock that tells
a silent agent from a dead one. Begin with `stream.py`.
"""
