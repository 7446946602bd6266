"""An app as a process: sockets, TLS, workers, reloading, a watch on the event loop.

It may import what `server` may. Begin with `run.py`.
"""
