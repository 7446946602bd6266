"""Keys."""

from dragoman.gateway.api.table import Endpoint

ENDPOINTS: list[Endpoint] = []
