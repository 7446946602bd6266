"""gRPC: beside another server, and under floods. Begin with `comparison.py`."""
