"""Every setting, once: its group, type, limits, default, environment name and line in the docs.

Settings are in groups by room: `settings.http.max_streams`. A group that exists is valid: each
value is cleaned and checked when the group is made (`group.py`, `formats.py`).
`docs/configuration.md` is written from here, and a test fails when it is stale. Imports `errors`
and `model`. Begin with `settings.py`.
"""

from dragoman.config.data_folder import data_folder, make_data_folder
from dragoman.config.gateway import GatewaySettings
from dragoman.config.group import ADDRESSES, SECRETS, SettingsGroup, refusal, without_password
from dragoman.config.http import HttpSettings
from dragoman.config.loading import (
    FIELDS,
    IN_FILES,
    OTHERS,
    PREFIX,
    check_names,
    load_settings,
    open_files,
    source_of,
    value_of,
)
from dragoman.config.security import EgressSettings, PushSettings, SecuritySettings
from dragoman.config.serving import (
    HOUSES,
    VERSIONS,
    CardSettings,
    DialectSettings,
    ServerSettings,
    TelemetrySettings,
)
from dragoman.config.settings import Settings
from dragoman.config.tasks import EngineSettings, StoreSettings

__all__ = [
    "ADDRESSES",
    "FIELDS",
    "HOUSES",
    "IN_FILES",
    "OTHERS",
    "PREFIX",
    "SECRETS",
    "VERSIONS",
    "CardSettings",
    "DialectSettings",
    "EgressSettings",
    "EngineSettings",
    "GatewaySettings",
    "HttpSettings",
    "PushSettings",
    "SecuritySettings",
    "ServerSettings",
    "Settings",
    "SettingsGroup",
    "StoreSettings",
    "TelemetrySettings",
    "check_names",
    "data_folder",
    "load_settings",
    "make_data_folder",
    "open_files",
    "refusal",
    "source_of",
    "value_of",
    "without_password",
]
