"""The next command to type when something went wrong."""

import shlex

from dragoman import errors
from dragoman.cli.failures import Failure
from dragoman.cli.invocation import Invocation
from dragoman.errors import A2AError


def hint_for(error: A2AError, failure: Failure, run: Invocation) -> str | None:
    """Return what to try after an error."""
    settings = run.settings
    ref = shlex.quote(run.redactor.text(settings.agent_card))
    match error:
        case errors.CredentialsMissing():
            return _credentials(error, ref)
        case errors.Unauthenticated() | errors.PermissionDenied():
            return f"check A2ACLI_BEARER or A2ACLI_API_KEY, or: dragoman auth login -a {ref}"
        case errors.VersionNotSupported():
            return (
                f"dragoman card get -a {ref} shows its versions; older ones need --a2a-version 0.3"
            )
        case errors.CardNotFound():
            return f"dragoman card get -a {ref} --debug"
        case errors.CardInvalid():
            return f"dragoman card get -a {ref} --validate"
        case errors.DeliveryUnknown():
            return f"see whether it arrived: dragoman task list -a {ref}"
        case errors.Unreachable() if "certificate" in error.facts.get("reason", ""):
            return "--ca-cert <path> trusts the authority that signed it"
        case errors.Unreachable():
            return f"dragoman card get -a {ref} --debug"
        case errors.ExtensionRequired():
            uris = error.facts.get("extensions", "<uri>").split(",")
            return " ".join(f"--extension {shlex.quote(uri)}" for uri in uris)
        case (
            errors.PushNotSupported()
            | errors.ExtendedCardNotConfigured()
            | errors.ContentTypeNotSupported()
        ):
            return f"dragoman card get -a {ref}"
        case errors.TaskNotFound() | errors.UnsupportedOperation() | errors.InvalidParams() if (
            named := _named(run, ref)
        ):
            return f"no task was started; {named}"
        case errors.TaskNotFound():
            return f"dragoman task list -a {ref}"
        case _:
            return "the same command with --debug shows what was exchanged"


def _named(run: Invocation, ref: str) -> str:
    """Return how to look at what a message was meant for."""
    settings = run.settings
    if run.is_about_task:
        return ""
    if settings.task_id:
        task = shlex.quote(settings.task_id)
        return f"look at it: dragoman task get -a {ref} {task} --debug"
    return "the same command with --debug shows why" if settings.context_id else ""


def _credentials(error: A2AError, ref: str) -> str:
    if origin := error.facts.get("origin"):
        return f"--trust-origin {shlex.quote(origin)}"
    kinds = error.facts.get("kinds", "").split(",")
    if "oauth2" in kinds or "openIdConnect" in kinds:
        return f"dragoman auth login -a {ref}"
    if "apiKey" in kinds:
        return "set A2ACLI_API_KEY, or pass --api-key"
    if "mtls" in kinds:
        return "--client-cert <path> --client-key <path>"
    return "set A2ACLI_BEARER, or pass --bearer"
