"""Run in the environment of a release of a2a-sdk: says what its generated classes are.

`table` prints every message and field of its descriptors; `bytes` reads JSON lines with the name of
a message and its ProtoJSON, and prints the bytes of each as hexadecimal.
"""

import json
import sys

from google.protobuf import json_format

try:
    from a2a.types import a2a_pb2
except ImportError:
    from a2a.grpc import a2a_pb2


def described(field) -> list:
    inner = field.message_type or field.enum_type
    entry = (
        field.message_type
        if field.message_type and field.message_type.GetOptions().map_entry
        else None
    )
    if entry is not None:
        inner = entry.fields_by_name["value"].message_type
    oneof = field.containing_oneof
    return [
        field.number,
        field.type,
        field.is_repeated,
        entry is not None,
        inner.name if inner else "",
        oneof.name if oneof else "",
        field.json_name,
    ]


def table() -> None:
    file = a2a_pb2.DESCRIPTOR
    found = {
        "package": file.package,
        "messages": {
            message.name: {field.name: described(field) for field in message.fields}
            for message in file.message_types_by_name.values()
        },
        "enums": {
            enum.name: [value.name for value in enum.values]
            for enum in file.enum_types_by_name.values()
        },
        "rpcs": {
            method.name: [
                method.input_type.name,
                method.output_type.name,
                method.server_streaming,
            ]
            for method in file.services_by_name["A2AService"].methods
        },
    }
    print(json.dumps(found))


def written() -> None:
    for line in sys.stdin:
        name, value = json.loads(line)
        message = json_format.ParseDict(value, getattr(a2a_pb2, name)())
        print(message.SerializeToString(deterministic=True).hex())


if __name__ == "__main__":
    table() if sys.argv[1] == "table" else written()
