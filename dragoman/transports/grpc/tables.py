"""The protobuf messages and rpcs of both versions, as one table.

A message is a line of fields, `name=number`, each a string unless more is said:

    `:Type`  of another type           `*`  repeated
    `?`      set or not, zero or not    `!`  its zero is a value to readers, not an absence
    `@name`  its JSON name, where that is not the camel case of its own
    `<Type>` a map from strings         `kind{...}`  one of several

The numbers are the protocol's (they differ between the versions) and never change. No dialect is
here: what a field means is decided where plain values are read and made.
"""

import msgspec

from dragoman.model import operations as ops
from dragoman.model.operations import Operation
from dragoman.transports.grpc.hosts import PACKAGES

# The position of an event, for readers that asked for it. Others skip the field.
POSITION = 50000

STATES = (
    "UNSPECIFIED SUBMITTED WORKING COMPLETED FAILED CANCELED INPUT_REQUIRED REJECTED AUTH_REQUIRED"
)
ROLES = "ROLE_UNSPECIFIED ROLE_USER ROLE_AGENT"


def _states(names: str) -> tuple[str, ...]:
    return tuple(f"TASK_STATE_{name}" for name in names.split())


class ProtoSchema(msgspec.Struct, frozen=True):
    """One version: a package, its messages and enumerations, and the rpcs of its service."""

    package: str
    messages: dict[str, str]
    enums: dict[str, tuple[str, ...]]
    rpcs: dict[str, "Rpc"]

    @property
    def service(self) -> str:
        """The full name of the service."""
        return f"{self.package}.A2AService"


class Rpc(msgspec.Struct, frozen=True):
    """One rpc: the operation that it asks for, and its messages."""

    operation: type[Operation]
    request: str
    reply: str


# Messages with the same fields in both versions. Their names are the same, too, but 0.3 calls the
# requirements of security `Security`.
_SHARED = {
    "AgentProvider": "url=1 organization=2",
    "AgentExtension": "uri=1 description=2 required=3:bool params=4:Struct",
    "AgentCardSignature": "protected=1 signature=2 header=3:Struct",
    "StringList": "list=1*",
    "SecurityScheme": (
        "scheme{api_key_security_scheme=1:APIKeySecurityScheme"
        " http_auth_security_scheme=2:HTTPAuthSecurityScheme"
        " oauth2_security_scheme=3:OAuth2SecurityScheme"
        " open_id_connect_security_scheme=4:OpenIdConnectSecurityScheme"
        " mtls_security_scheme=5:MutualTlsSecurityScheme}"
    ),
    "APIKeySecurityScheme": "description=1 location=2 name=3",
    "HTTPAuthSecurityScheme": "description=1 scheme=2 bearer_format=3",
    "OAuth2SecurityScheme": "description=1 flows=2:OAuthFlows oauth2_metadata_url=3",
    "OpenIdConnectSecurityScheme": "description=1 open_id_connect_url=2",
    "MutualTlsSecurityScheme": "description=1",
    "ClientCredentialsOAuthFlow": "token_url=1 refresh_url=2 scopes=3<string>",
    "ImplicitOAuthFlow": "authorization_url=1 refresh_url=2 scopes=3<string>",
    "PasswordOAuthFlow": "token_url=1 refresh_url=2 scopes=3<string>",
    "TaskArtifactUpdateEvent": (
        "task_id=1 context_id=2 artifact=3:Artifact append=4:bool last_chunk=5:bool"
        " metadata=6:Struct"
    ),
}

V1_0 = ProtoSchema(
    PACKAGES["1.0"],
    _SHARED
    | {
        "SendMessageRequest": (
            "tenant=1 message=2:Message configuration=3:SendMessageConfiguration metadata=4:Struct"
        ),
        "SendMessageConfiguration": (
            "accepted_output_modes=1*"
            " task_push_notification_config=2:TaskPushNotificationConfig"
            " history_length=3?:int32 return_immediately=4:bool"
        ),
        "GetTaskRequest": "tenant=1 id=2 history_length=3?:int32",
        "ListTasksRequest": (
            "tenant=1 context_id=2 status=3:TaskState page_size=4?:int32 page_token=5"
            " history_length=6?:int32 status_timestamp_after=7:Timestamp"
            " include_artifacts=8?:bool"
        ),
        "ListTasksResponse": (
            "tasks=1*:Task next_page_token=2 page_size=3!:int32 total_size=4!:int32"
        ),
        "CancelTaskRequest": "tenant=1 id=2 metadata=3:Struct",
        "SubscribeToTaskRequest": "tenant=1 id=2",
        "GetTaskPushNotificationConfigRequest": "tenant=1 task_id=2 id=3",
        "DeleteTaskPushNotificationConfigRequest": "tenant=1 task_id=2 id=3",
        # The tenant is last here, and nowhere else.
        "ListTaskPushNotificationConfigsRequest": (
            "task_id=1 page_size=2:int32 page_token=3 tenant=4"
        ),
        "ListTaskPushNotificationConfigsResponse": (
            "configs=1*:TaskPushNotificationConfig next_page_token=2"
        ),
        "GetExtendedAgentCardRequest": "tenant=1",
        "SendMessageResponse": "payload{task=1:Task message=2:Message}",
        "StreamResponse": (
            "payload{task=1:Task message=2:Message status_update=3:TaskStatusUpdateEvent"
            f" artifact_update=4:TaskArtifactUpdateEvent}} position={POSITION}:int64"
        ),
        "Task": (
            "id=1 context_id=2 status=3:TaskStatus artifacts=4*:Artifact history=5*:Message"
            " metadata=6:Struct"
        ),
        "TaskStatus": "state=1!:TaskState message=2:Message timestamp=3:Timestamp",
        "Message": (
            "message_id=1 context_id=2 task_id=3 role=4:Role parts=5*:Part metadata=6:Struct"
            " extensions=7* reference_task_ids=8*"
        ),
        "Part": (
            "content{text=1 raw=2:bytes url=3 data=4:Value} metadata=5:Struct filename=6"
            " media_type=7"
        ),
        "Artifact": (
            "artifact_id=1 name=2 description=3 parts=4*:Part metadata=5:Struct extensions=6*"
        ),
        "TaskStatusUpdateEvent": "task_id=1 context_id=2 status=3:TaskStatus metadata=4:Struct",
        "TaskPushNotificationConfig": (
            "tenant=1 id=2 task_id=3 url=4 token=5 authentication=6:AuthenticationInfo"
        ),
        "AuthenticationInfo": "scheme=1 credentials=2",
        "AgentCard": (
            "name=1 description=2 supported_interfaces=3*:AgentInterface provider=4:AgentProvider"
            " version=5 documentation_url=6? capabilities=7:AgentCapabilities"
            " security_schemes=8<SecurityScheme> security_requirements=9*:SecurityRequirement"
            " default_input_modes=10* default_output_modes=11* skills=12*:AgentSkill"
            " signatures=13*:AgentCardSignature icon_url=14?"
        ),
        "AgentInterface": "url=1 protocol_binding=2 tenant=3 protocol_version=4",
        "AgentCapabilities": (
            "streaming=1?:bool push_notifications=2?:bool extensions=3*:AgentExtension"
            " extended_agent_card=4?:bool"
        ),
        "AgentSkill": (
            "id=1 name=2 description=3 tags=4* examples=5* input_modes=6* output_modes=7*"
            " security_requirements=8*:SecurityRequirement"
        ),
        "SecurityRequirement": "schemes=1<StringList>",
        "OAuthFlows": (
            "flow{authorization_code=1:AuthorizationCodeOAuthFlow"
            " client_credentials=2:ClientCredentialsOAuthFlow implicit=3:ImplicitOAuthFlow"
            " password=4:PasswordOAuthFlow device_code=5:DeviceCodeOAuthFlow}"
        ),
        "AuthorizationCodeOAuthFlow": (
            "authorization_url=1 token_url=2 refresh_url=3 scopes=4<string> pkce_required=5:bool"
        ),
        "DeviceCodeOAuthFlow": (
            "device_authorization_url=1 token_url=2 refresh_url=3 scopes=4<string>"
        ),
    },
    {"TaskState": _states(STATES), "Role": tuple(ROLES.split())},
    {
        "SendMessage": Rpc(ops.SendMessage, "SendMessageRequest", "SendMessageResponse"),
        "SendStreamingMessage": Rpc(ops.StreamMessage, "SendMessageRequest", "StreamResponse"),
        "GetTask": Rpc(ops.GetTask, "GetTaskRequest", "Task"),
        "ListTasks": Rpc(ops.ListTasks, "ListTasksRequest", "ListTasksResponse"),
        "CancelTask": Rpc(ops.CancelTask, "CancelTaskRequest", "Task"),
        "SubscribeToTask": Rpc(ops.SubscribeToTask, "SubscribeToTaskRequest", "StreamResponse"),
        "CreateTaskPushNotificationConfig": Rpc(
            ops.CreatePush, "TaskPushNotificationConfig", "TaskPushNotificationConfig"
        ),
        "GetTaskPushNotificationConfig": Rpc(
            ops.GetPush, "GetTaskPushNotificationConfigRequest", "TaskPushNotificationConfig"
        ),
        "ListTaskPushNotificationConfigs": Rpc(
            ops.ListPush,
            "ListTaskPushNotificationConfigsRequest",
            "ListTaskPushNotificationConfigsResponse",
        ),
        "GetExtendedAgentCard": Rpc(
            ops.GetExtendedCard, "GetExtendedAgentCardRequest", "AgentCard"
        ),
        "DeleteTaskPushNotificationConfig": Rpc(
            ops.DeletePush, "DeleteTaskPushNotificationConfigRequest", "Empty"
        ),
    },
)

_CREATE_PUSH = Rpc(
    ops.CreatePush, "CreateTaskPushNotificationConfigRequest", "TaskPushNotificationConfig"
)
_GET_PUSH = Rpc(ops.GetPush, "GetTaskPushNotificationConfigRequest", "TaskPushNotificationConfig")
_LIST_PUSH = Rpc(
    ops.ListPush, "ListTaskPushNotificationConfigRequest", "ListTaskPushNotificationConfigResponse"
)

V0_3 = ProtoSchema(
    PACKAGES["0.3"],
    _SHARED
    | {
        "SendMessageRequest": (
            "request=1:Message@message configuration=2:SendMessageConfiguration metadata=3:Struct"
        ),
        "SendMessageConfiguration": (
            "accepted_output_modes=1* push_notification=2:PushNotificationConfig"
            " history_length=3:int32 blocking=4:bool"
        ),
        "GetTaskRequest": "name=1 history_length=2:int32",
        "CancelTaskRequest": "name=1",
        "TaskSubscriptionRequest": "name=1",
        "CreateTaskPushNotificationConfigRequest": (
            "parent=1 config_id=2 config=3:TaskPushNotificationConfig"
        ),
        "GetTaskPushNotificationConfigRequest": "name=1",
        "DeleteTaskPushNotificationConfigRequest": "name=1",
        "ListTaskPushNotificationConfigRequest": "parent=1 page_size=2:int32 page_token=3",
        "ListTaskPushNotificationConfigResponse": (
            "configs=1*:TaskPushNotificationConfig next_page_token=2"
        ),
        "GetAgentCardRequest": "",
        "SendMessageResponse": "payload{task=1:Task msg=2:Message@message}",
        "StreamResponse": (
            "payload{task=1:Task msg=2:Message@message status_update=3:TaskStatusUpdateEvent"
            f" artifact_update=4:TaskArtifactUpdateEvent}} position={POSITION}:int64"
        ),
        "Task": (
            "id=1 context_id=2 status=3:TaskStatus artifacts=4*:Artifact history=5*:Message"
            " metadata=6:Struct"
        ),
        "TaskStatus": "state=1!:TaskState update=2:Message@message timestamp=3:Timestamp",
        "Message": (
            "message_id=1 context_id=2 task_id=3 role=4:Role content=5*:Part metadata=6:Struct"
            " extensions=7*"
        ),
        "Part": "part{text=1 file=2:FilePart data=3:DataPart} metadata=4:Struct",
        "FilePart": "file{file_with_uri=1 file_with_bytes=2:bytes} mime_type=3 name=4",
        "DataPart": "data=1:Struct",
        "Artifact": (
            "artifact_id=1 name=3 description=4 parts=5*:Part metadata=6:Struct extensions=7*"
        ),
        "TaskStatusUpdateEvent": (
            "task_id=1 context_id=2 status=3:TaskStatus final=4:bool metadata=5:Struct"
        ),
        "TaskPushNotificationConfig": ("name=1 push_notification_config=2:PushNotificationConfig"),
        "PushNotificationConfig": "id=1 url=2 token=3 authentication=4:AuthenticationInfo",
        "AuthenticationInfo": "schemes=1* credentials=2",
        "AgentCard": (
            "name=1 description=2 url=3 provider=4:AgentProvider version=5 documentation_url=6"
            " capabilities=7:AgentCapabilities security_schemes=8<SecurityScheme>"
            " security=9*:Security default_input_modes=10* default_output_modes=11*"
            " skills=12*:AgentSkill supports_authenticated_extended_card=13:bool"
            " preferred_transport=14 additional_interfaces=15*:AgentInterface"
            " protocol_version=16 signatures=17*:AgentCardSignature icon_url=18"
        ),
        "AgentInterface": "url=1 transport=2",
        "AgentCapabilities": (
            "streaming=1:bool push_notifications=2:bool extensions=3*:AgentExtension"
        ),
        "AgentSkill": (
            "id=1 name=2 description=3 tags=4* examples=5* input_modes=6* output_modes=7*"
            " security=8*:Security"
        ),
        "Security": "schemes=1<StringList>",
        "OAuthFlows": (
            "flow{authorization_code=1:AuthorizationCodeOAuthFlow"
            " client_credentials=2:ClientCredentialsOAuthFlow implicit=3:ImplicitOAuthFlow"
            " password=4:PasswordOAuthFlow}"
        ),
        "AuthorizationCodeOAuthFlow": (
            "authorization_url=1 token_url=2 refresh_url=3 scopes=4<string>"
        ),
    },
    {
        # One of the states has another spelling in 0.3.
        "TaskState": _states(STATES.replace("CANCELED", "CANCELLED")),
        "Role": tuple(ROLES.split()),
    },
    {
        "SendMessage": Rpc(ops.SendMessage, "SendMessageRequest", "SendMessageResponse"),
        "SendStreamingMessage": Rpc(ops.StreamMessage, "SendMessageRequest", "StreamResponse"),
        "GetTask": Rpc(ops.GetTask, "GetTaskRequest", "Task"),
        "CancelTask": Rpc(ops.CancelTask, "CancelTaskRequest", "Task"),
        "TaskSubscription": Rpc(ops.SubscribeToTask, "TaskSubscriptionRequest", "StreamResponse"),
        "CreateTaskPushNotificationConfig": _CREATE_PUSH,
        "GetTaskPushNotificationConfig": _GET_PUSH,
        "ListTaskPushNotificationConfig": _LIST_PUSH,
        "GetAgentCard": Rpc(ops.GetExtendedCard, "GetAgentCardRequest", "AgentCard"),
        "DeleteTaskPushNotificationConfig": Rpc(
            ops.DeletePush, "DeleteTaskPushNotificationConfigRequest", "Empty"
        ),
        # What three of them were called until 0.2.4.
        "CreateTaskPushNotification": _CREATE_PUSH,
        "GetTaskPushNotification": _GET_PUSH,
        "ListTaskPushNotification": _LIST_PUSH,
    },
)

# How errors travel beside the status of an rpc.
STATUS = ProtoSchema(
    "google.rpc",
    {
        "Status": "code=1:int32 message=2 details=3*:Any",
        "ErrorInfo": "reason=1 domain=2 metadata=3<string>",
        "BadRequest": "field_violations=1*:FieldViolation",
        "FieldViolation": "field=1 description=2",
        "RetryInfo": "retry_delay=1:Duration",
    },
    {},
    {},
)
