"""Commands that ask a running gateway by its REST API: agents, credits, trust, workflows.

They share `gateway_api.py`; begin there. Imports the rest of `cli/`, and the client when a command
runs.
"""
