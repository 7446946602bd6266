"""The agent card. Fields as in 1.0; dialects translate older versions."""

import msgspec

from dragoman.model.message import Json, Metadata

JSONRPC = "JSONRPC"
HTTP_JSON = "HTTP+JSON"
GRPC = "GRPC"

# Extensions that our servers offer and our client uses.
# Streams carry positions, and Last-Event-ID resumes them.
RESUME_URI = "urn:dragoman:resume:v1"
# A message sent twice is worked on once: the second answer is the first task.
ONCE_URI = "urn:dragoman:once:v1"
# The card has JSON Schemas of its skills, by skill id: of arguments in the parameter `schemas`, of
# results in `results`.
SCHEMAS_URI = "urn:dragoman:skill-schemas:v1"


class AgentInterface(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One way to reach the agent: an address, a binding and a version."""

    url: str
    protocol_binding: str
    protocol_version: str
    tenant: str = ""


class AgentProvider(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The provider of the agent."""

    url: str
    organization: str


class AgentExtension(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An agreed addition to the protocol."""

    uri: str
    description: str = ""
    required: bool = False
    params: Metadata = {}


class AgentCapabilities(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the agent offers beyond send, get and cancel."""

    streaming: bool | None = None
    push_notifications: bool | None = None
    extensions: list[AgentExtension] = []
    extended_agent_card: bool | None = None


class AgentSkill(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One thing the agent can do."""

    id: str
    name: str
    description: str
    # Required on the wire even when empty, hence without a default that would be left out.
    tags: list[str]
    examples: list[str] = []
    input_modes: list[str] = []
    output_modes: list[str] = []
    security_requirements: list[Json] = []


class AgentCard(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An agent's description of itself."""

    name: str
    description: str
    supported_interfaces: list[AgentInterface]
    version: str
    capabilities: AgentCapabilities
    default_input_modes: list[str]
    default_output_modes: list[str]
    skills: list[AgentSkill]
    provider: AgentProvider | None = None
    documentation_url: str | None = None
    icon_url: str | None = None
    security_schemes: dict[str, Json] = {}
    security_requirements: list[Json] = []
    signatures: list[Json] = []
