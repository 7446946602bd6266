"""Names and behaviour of other libraries on this engine: their users change an import.

Each package is one library: `corvid`, `nexus` (an SDK for gateways) and `selectools`. Known defects
of the originals are not reproduced. Imports server, authoring and client; no other room imports
this one except the command line. Begin with the `__init__` of a package.
"""
