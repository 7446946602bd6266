"""gRPC: the protobuf messages of both versions, their plain values, and statuses as errors.

Only this folder knows protobuf, and only the extra `grpc` brings it: nothing outside imports it at
its top. Begin with `tables.py`, which has every message and rpc, then `plain_values.py`.
"""
