"""Nothing that is printed in passing, in a trace or a test, has a secret in it."""

from typing import Any

import msgspec
import pytest

from dragoman.config import PushSettings, SecuritySettings, Settings
from dragoman.model.identity import Scope
from dragoman.model.operations import CreatePush
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.stores.interface import Push

SECRET = "whsec_aHVzaC1odXNoLWh1c2gtaHVzaC1odXNo"
AUTHENTICATION = PushAuthentication("Bearer", SECRET)
CONFIG = PushConfig("https://a.example/", "c", token=SECRET, authentication=AUTHENTICATION)


@pytest.mark.parametrize(
    "thing",
    [
        Settings(push=PushSettings(secrets=[SECRET])),
        AUTHENTICATION,
        CONFIG,
        [CONFIG],
        Push(1, 1, Scope("a", "", ""), CONFIG, 0),
        CreatePush(task_id=CONFIG.task_id, config=CONFIG),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_what_is_printed_has_no_secret(thing: Any) -> None:
    assert SECRET not in repr(thing) and SECRET not in str(thing) and SECRET not in f"{thing!r}"
    assert "'***'" in repr(thing)


@pytest.mark.parametrize("kind", [SecuritySettings, PushAuthentication, PushConfig])
def test_every_field_whose_name_speaks_of_a_secret_is_masked(kind: type[msgspec.Struct]) -> None:
    words = ("secret", "token", "credentials", "password")
    fields = [field for field in msgspec.structs.fields(kind) if field.name.endswith(words)]
    assert fields
    for field in fields:
        required = {f.name: "x" for f in msgspec.structs.fields(kind) if f.required}
        assert SECRET not in repr(kind(**required | {field.name: SECRET})), field.name


def test_an_empty_secret_is_seen_to_be_empty() -> None:
    assert "auth_token=''" in repr(Settings()) and "token=''" in repr(PushConfig("u"))
    assert repr(Settings()).startswith("Settings(stores=StoreSettings(location='', ")
