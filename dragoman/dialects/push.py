"""Push configurations on every wire: one flat object in 1.0, an object inside one in 0.x.

Both read into the same model, and both refuse what could not be posted later: texts that would
break a header or an address, and credentials that no scheme presents. Where a receiver may be, and
who assigns a missing id, is decided elsewhere.
"""

import msgspec

from dragoman.dialects import reading
from dragoman.dialects.reading import Object, Value, both_spellings, one_spelling
from dragoman.errors import InvalidParams, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.model.push import PushAuthentication, PushConfig, is_scheme, is_sendable
from dragoman.service import Nothing, PushPage, Reply

MAX_URL_LENGTH = 2_048
MAX_TOKEN_LENGTH = 4_096
MAX_SCHEME_LENGTH = 256
MAX_CREDENTIALS_LENGTH = 8_192
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 50, 100

PushOperation = ops.CreatePush | ops.GetPush | ops.ListPush | ops.DeletePush
OPERATIONS: frozenset[type[ops.Operation]] = frozenset(
    {ops.CreatePush, ops.GetPush, ops.ListPush, ops.DeletePush}
)

# Shapes of drafts put the configuration into one of these, and its id beside it.
_WRAPPERS = ("config", "push_notification_config")
_FLAT = both_spellings(
    "tenant taskId id url token authentication config pushNotificationConfig",
) | {"configId": "id", "config_id": "id"}
_INNER = one_spelling("id", "url", "token", "authentication")
# An example of 1.0.0 still has the list of 0.x.
_AUTHENTICATION = both_spellings("scheme", "schemes", "credentials")
_NAMED = both_spellings("tenant", "taskId", "id")
_PAGE_WANTED = both_spellings("tenant", "taskId", "pageSize", "pageToken")
_PAGE = both_spellings("configs", "nextPageToken")
_OLD_SET = one_spelling("taskId", "pushNotificationConfig")
_OLD_NAMED = one_spelling("id", "pushNotificationConfigId")


def decode_flat(value: Value, path: str) -> PushConfig:
    """Return a configuration of 1.0; where it is nested, what stands outside wins."""
    fields, _ = reading.split(value, _FLAT, path)
    task_id = TaskId(_optional_id(fields, "task_id", path))
    for wrapper in _WRAPPERS:
        if wrapper in fields:
            inner = decode_flat(fields[wrapper], reading.at(path, reading.camel(wrapper)))
            return msgspec.structs.replace(
                inner,
                id=_optional_id(fields, "id", path) or inner.id,
                task_id=task_id or inner.task_id,
            )
    return _config(fields, path, "1.0", task_id)


def encode_flat(config: PushConfig, tenant: str = "") -> Object:
    """Return a configuration as 1.0 has it."""
    value: Object = {"tenant": tenant} if tenant else {}
    if config.id:
        value["id"] = config.id
    if config.task_id:
        value["taskId"] = config.task_id
    value["url"] = config.url
    if config.authentication is not None:
        value["authentication"] = {"scheme": config.authentication.scheme}
    return _with_secrets(value, config)


def decode_inner(value: Value, path: str, version: str, task_id: str = "") -> PushConfig:
    """Return the inner object of 0.x, which does not name its task."""
    fields, _ = reading.split(value, _INNER, path)
    return _config(fields, path, version, TaskId(task_id))


def encode_inner(config: PushConfig) -> Object:
    """Return the inner object of 0.x."""
    value: Object = {"url": config.url}
    if config.id:
        value["id"] = config.id
    if config.authentication is not None:
        scheme = config.authentication.scheme
        value["authentication"] = {"schemes": [scheme] if scheme else []}
    return _with_secrets(value, config)


def decode_v1(kind: type[ops.Operation], params: Object) -> PushOperation:
    """Return an operation of 1.0."""
    if kind is ops.CreatePush:
        config = decode_flat(params, "")
        if not config.task_id:
            raise InvalidParams("is required", field="taskId")
        return ops.CreatePush(task_id=config.task_id, config=config, tenant=_tenant(params))
    if kind is ops.ListPush:
        fields, _ = reading.split(params, _PAGE_WANTED, "")
        return ops.ListPush(
            task_id=TaskId(_id(fields, "task_id")),
            page_size=_page_size(fields),
            page_token=reading.text(fields.get("page_token", ""), "pageToken"),
            tenant=_tenant(params),
        )
    fields, _ = reading.split(params, _NAMED, "")
    task_id, config_id = TaskId(_id(fields, "task_id")), _id(fields, "id")
    if kind is ops.GetPush:
        return ops.GetPush(task_id=task_id, config_id=config_id, tenant=_tenant(params))
    return ops.DeletePush(task_id=task_id, config_id=config_id, tenant=_tenant(params))


def encode_v1(operation: PushOperation) -> Object:
    """Return the parameters of an operation of 1.0, but for the tenant."""
    match operation:
        case ops.CreatePush():
            return encode_flat(operation.config) | {"taskId": operation.task_id}
        case ops.ListPush():
            params: Object = {"taskId": operation.task_id, "pageSize": operation.page_size}
            return params | ({"pageToken": operation.page_token} if operation.page_token else {})
        case ops.GetPush() | ops.DeletePush():
            if not operation.config_id:
                raise UnsupportedOperation("The peer's protocol version reads none but by its id")
            return {"taskId": operation.task_id, "id": operation.config_id}


def decode_v0(kind: type[ops.Operation], params: Object, version: str) -> PushOperation:
    """Return an operation of 0.x; a read may leave it to us which configuration it gets."""
    if kind is ops.CreatePush:
        fields, _ = reading.split(params, _OLD_SET, "")
        task_id = TaskId(_id(fields, "task_id"))
        inner = reading.required(fields, "push_notification_config", "")
        config = decode_inner(inner, "pushNotificationConfig", version, task_id)
        return ops.CreatePush(task_id=task_id, config=config)
    fields, _ = reading.split(params, _OLD_NAMED, "")
    task_id = TaskId(_id(fields, "id"))
    if kind is ops.ListPush:
        return ops.ListPush(task_id=task_id)
    if kind is ops.GetPush:
        config_id = _optional_id(fields, "push_notification_config_id", "")
        return ops.GetPush(task_id=task_id, config_id=config_id)
    return ops.DeletePush(task_id=task_id, config_id=_id(fields, "push_notification_config_id"))


def encode_v0(operation: PushOperation) -> Object:
    """Return the parameters of an operation of 0.x, whose lists have no pages."""
    match operation:
        case ops.CreatePush():
            return _old_outer(operation.config, operation.task_id)
        case ops.ListPush():
            return {"id": operation.task_id}
        case ops.GetPush() | ops.DeletePush():
            params: Object = {"id": operation.task_id}
            if operation.config_id:
                params["pushNotificationConfigId"] = operation.config_id
            return params


def encode_reply_v1(reply: PushConfig | PushPage | Nothing, tenant: str) -> Value:
    """Return a reply of 1.0, which names the tenant as its request did."""
    match reply:
        case PushConfig():
            return encode_flat(reply, tenant)
        case PushPage():
            configs = [encode_flat(config, tenant) for config in reply.configs]
            return {"configs": configs, "nextPageToken": reply.next_page_token}
        case Nothing():
            return None


def decode_reply_v1(operation: PushOperation, value: Value) -> Reply:
    """Return a peer's reply; one that leaves the task out means the task asked about."""

    def config(item: Value, path: str) -> PushConfig:
        read = decode_flat(item, path)
        return msgspec.structs.replace(read, task_id=read.task_id or operation.task_id)

    match operation:
        case ops.CreatePush() | ops.GetPush():
            return config(value, "result")
        case ops.ListPush():
            fields, _ = reading.split(value, _PAGE, "result")
            token = reading.text(fields.get("next_page_token", ""), "result.nextPageToken")
            configs = reading.array(fields.get("configs", []), "result.configs", config)
            return PushPage(configs, token)
        case ops.DeletePush():
            # Peers answer null, an empty object or nothing at all.
            return Nothing()


def encode_reply_v0(reply: PushConfig | PushPage | Nothing) -> Value:
    """Return a reply of 0.x."""
    match reply:
        case PushConfig():
            return _old_outer(reply, reply.task_id)
        case PushPage():
            return [_old_outer(config, config.task_id) for config in reply.configs]
        case Nothing():
            return None


def decode_reply_v0(operation: PushOperation, value: Value, version: str) -> Reply:
    """Return a peer's reply; one that leaves the task out means the task asked about."""

    def config(item: Value, path: str) -> PushConfig:
        fields, _ = reading.split(item, _OLD_SET, path)
        inner = reading.required(fields, "push_notification_config", path)
        task_id = _optional_id(fields, "task_id", path) or operation.task_id
        return decode_inner(inner, f"{path}.pushNotificationConfig", version, task_id)

    match operation:
        case ops.CreatePush() | ops.GetPush():
            return config(value, "result")
        case ops.ListPush():
            return PushPage(reading.array(value, "result", config))
        case ops.DeletePush():
            return Nothing()


def _config(fields: Object, path: str, version: str, task_id: TaskId) -> PushConfig:
    url = reading.at(path, "url")
    address = _printable(reading.required(fields, "url", path), url, MAX_URL_LENGTH)
    if not address:
        raise InvalidParams("must not be empty", field=url)
    given = fields.get("authentication")
    return PushConfig(
        url=address,
        id=_optional_id(fields, "id", path),
        task_id=task_id,
        token=_printable(fields.get("token", ""), reading.at(path, "token"), MAX_TOKEN_LENGTH),
        authentication=None
        if given is None
        else _authentication(given, reading.at(path, "authentication")),
        version=version,
    )


def _authentication(value: Value, path: str) -> PushAuthentication:
    fields, _ = reading.split(value, _AUTHENTICATION, path)
    if "scheme" in fields:
        name, scheme = f"{path}.scheme", fields["scheme"]
    else:
        # Of several the first: we send one, and it is the one its caller likes best.
        schemes = reading.texts(fields.get("schemes", []), f"{path}.schemes")
        name, scheme = f"{path}.schemes[0]", schemes[0] if schemes else ""
    scheme = _printable(scheme, name, MAX_SCHEME_LENGTH)
    if scheme and not is_scheme(scheme):
        raise InvalidParams("must be the name of a scheme", field=name)
    credentials = _printable(
        fields.get("credentials", ""), f"{path}.credentials", MAX_CREDENTIALS_LENGTH
    )
    if credentials and not scheme:
        raise InvalidParams("needs a scheme to be presented in", field=f"{path}.credentials")
    return PushAuthentication(scheme, credentials)


def _printable(value: Value, path: str, longest: int) -> str:
    """Return a text that can stand in a header or an address without ending it."""
    text = reading.text(value, path)
    if len(text) > longest:
        raise InvalidParams(f"must be at most {longest} characters", field=path)
    if not is_sendable(text):
        raise InvalidParams("must not have control or unseen characters", field=path)
    return text


def _with_secrets(value: Object, config: PushConfig) -> Object:
    if config.token:
        value["token"] = config.token
    if config.authentication is not None and config.authentication.credentials:
        value["authentication"]["credentials"] = config.authentication.credentials
    return value


def _old_outer(config: PushConfig, task_id: TaskId) -> Object:
    return {"taskId": task_id, "pushNotificationConfig": encode_inner(config)}


def _id(fields: Object, name: str) -> str:
    return reading.identifier(reading.required(fields, name, ""), reading.camel(name))


def _optional_id(fields: Object, name: str, path: str) -> str:
    at = reading.at(path, reading.camel(name))
    return reading.optional_identifier(fields.get(name, ""), at)


def _page_size(fields: Object) -> int:
    # Zero is how the proto says nothing; more than we give at once is asked for in vain.
    size = reading.integer(fields.get("page_size", 0), "pageSize")
    if size < 0:
        raise InvalidParams("must not be negative", field="pageSize")
    return min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def _tenant(params: Object) -> str:
    tenant = params.get("tenant")
    return "" if tenant is None else reading.optional_identifier(tenant, "tenant")
