"""The server's side of gRPC: HTTP/2 connections of the common port, and rpcs as requests.

A connection that begins with HTTP/2 is piped to a gRPC server of this process that nothing else
can reach. Each rpc becomes a request that passes the same access control as any other. Begin with
`pipes.py`, then `exchange.py`; `inner_server.py` alone imports `grpc` and is loaded with the first
connection.
"""
