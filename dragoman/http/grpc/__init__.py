"""The server's side of gRPC: HTTP/2 connections of the common port, and rpcs as requests.

A connection that begins with HTTP/2 is read by `http2.py`; each of its streams is an rpc
(`rpc.py`), and each rpc of A2A a request that passes the same access control as any other
(`exchange.py`). Begin with `front.py`; it loads the rest, and with it protobuf, when the first
connection comes.
"""
