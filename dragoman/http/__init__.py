"""The server's side of HTTP: reading requests strictly and in time, deciding who gets in and how
much each caller may ask for, and the plain ways to answer.

Imports `transports`, `dialects`, `security` and what is below them; nothing of `server`,
`authoring` or `gateway`. Begin with `protocol.py`, which reads a connection, then
`access_control.py`, which
every request passes, then `request.py`.
"""
