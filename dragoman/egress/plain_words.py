"""What is said of a connection that broke, in words of people: names of errors are for programs."""

import re

from dragoman.model.patterns import late_pattern

# What a failure is called where we dial, and what the system says about it.
_KINDS = late_pattern(
    r"\b(?P<name>NotConnected|NotResolved|NotSecured|HungUp|ConnectionBroke|CutShort|NotHttp"
    r"|HeadTooLong|NotUnpacked)\b(?:: (?P<said>[^;]+))?"
)
_SILENT = {
    "NotResolved": "there is no host of this name",
    "HungUp": "the connection was closed without an answer",
    "CutShort": "the answer broke off",
    "NotHttp": "the answer is not HTTP",
    "HeadTooLong": "the head of the answer is too long",
    "NotUnpacked": "the answer is packed, and not in a way that can be read",
}
# What TLS says where plain http is spoken.
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_TLS: dict[str, str] = dict.fromkeys(
    NO_TLS, "no TLS is spoken there; plain http has to be named by http://"
)
_NAMES = ("Name or service not known", "No address associated with hostname")


def plain(text: str) -> str:
    """Return what is said of a broken connection in words of people."""
    return _KINDS.sub(_in_words, text)


def _in_words(found: re.Match[str]) -> str:
    reason = found["said"] or ""
    if not reason:
        return _SILENT.get(found["name"], "the connection broke")
    if reason in _NAMES:
        return "there is no host of this name"
    if re.fullmatch("[A-Z][A-Z0-9_]+", reason):
        return _TLS.get(reason, f"TLS failed ({reason.lower().replace('_', ' ')})")
    return reason[0].lower() + reason[1:] if reason[1:2].islower() else reason
