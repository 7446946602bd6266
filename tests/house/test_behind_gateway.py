"""Callers of every house reach an agent behind a gateway, at the gateway and at its own address."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

from housemates import nexus_message, settled
from serving import Site, old_message

from tests.gateway.carrying import agents_behind, gateway
