"""Where the console is."""

from dragoman.http.request import HttpRequest

PATH = "/console"
# Where people look for the description of an API, and below the console its page.
DOCS = "/docs"


def base(request: HttpRequest) -> str:
    """Return the path of the console as its visitor sees it."""
    return request.scope.get("root_path", "") + PATH
