"""Load the client quickly: a command that sends one message should not wait for its tools."""

import os
import sys
from importlib import import_module

# Where OpenSSL is told to look for certificates.
_PLACES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def load_client() -> None:
    """Import the HTTP library without the certificates of the machine.

    On import it reads them all for a context of its own, a tenth of a second, although every https
    address is dialled with a context of ours. The library's trusts nobody after this, so a mistake
    would be noticed. There is one thread yet, so nobody else sees the variables.
    """
    if "dragoman.security.egress" in sys.modules:
        return
    kept = {name: os.environ.pop(name, None) for name in _PLACES}
    os.environ.update(dict.fromkeys(_PLACES, os.devnull))
    try:
        import_module("dragoman.security.egress")
    finally:
        for name, value in kept.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
