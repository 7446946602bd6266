"""Errors in the shape of that API: an object `error` with a message, a type, the parameter and a
code. What is refused before the path is looked at (no credential, too many requests) is answered as
everywhere, with such an object inside: callers without access learn nothing of what is here."""

from typing import Any

from dragoman.dialects import errors
from dragoman.errors import A2AError, InvalidParams, retry_after
from dragoman.http.documents import document
from dragoman.http.request import Headers, HttpRequest

# By status; every other one of the caller's is an invalid request.
_TYPES = {
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
# The package of that API repeats a request after 409, 429 and 5xx; this header decides otherwise.
NO_RETRY = (b"x-should-retry", b"false")


class ChatError(Exception):
    """What that API has an error for and A2A has not: an unknown model, a task that ended without
    an answer."""

    def __init__(self, message: str, *, status: int, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.public = message
        self.status = status
        self.code = code
        self.param = param


def model_not_found(model: str) -> ChatError:
    """Return what is said of a model that does not exist, or not for this caller."""
    # As it was sent, but not more of it than a name has.
    message = f"The model `{model[:128]}` does not exist or you do not have access to it."
    return ChatError(message, status=404, code="model_not_found", param="model")


def shape(error: A2AError | ChatError) -> tuple[int, dict[str, Any]]:
    """Return the status and the document of an error."""
    if isinstance(error, ChatError):
        status, code, param = error.status, error.code, error.param
    else:
        row = errors.row_of(error)
        status, code = row.http, row.reason.lower()
        param = error.field or None if isinstance(error, InvalidParams) else None
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    facts = {"message": error.public, "type": kind, "param": param, "code": code}
    return status, {"error": facts}


async def refuse(request: HttpRequest, error: A2AError | ChatError) -> None:
    """Answer a request with an error."""
    status, content = shape(error)
    request.watched.failed(error)
    headers: Headers = []
    if isinstance(error, ChatError):
        # Sent again, the message would begin the work anew.
        headers.append(NO_RETRY)
    elif status in (429, 503):
        headers.append((b"retry-after", b"%d" % retry_after(error)))
    await document(request, content, *headers, status=status)
