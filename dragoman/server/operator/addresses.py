"""The paths of operators."""

# Of the operator API. All of it is for callers, as its rows say, but for its description.
API = "/api/v1/console"
DESCRIPTION = f"{API}/openapi.json"
STATUS = "/admin/status"
METRICS = "/metrics"
