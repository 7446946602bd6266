"""Commands that hold an agent to the protocol, and measure it. Begin with `conformance.py`."""
