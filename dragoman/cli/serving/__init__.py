"""Commands that run something: agents, a gateway, scripted and recorded agents, MCP servers.

`listening.py` has the options and the ready line that all of them share. Begin with `serve.py`.
"""
