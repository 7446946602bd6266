"""Artifacts: what a task produces."""

import msgspec

from dragoman.model.message import Metadata, Part


class Artifact(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A result, or one chunk of it: chunks of one result share its id."""

    artifact_id: str
    parts: list[Part]
    name: str = ""
    description: str = ""
    metadata: Metadata = {}
    extensions: list[str] = []
    extra: Metadata = msgspec.field(name="~", default={})
