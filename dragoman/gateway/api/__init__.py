"""The gateway's REST API: `/api/v1/`, and the little beside it.

One table says what there is; the routes, the checks of what callers send and the OpenAPI document
all come from it, so that they cannot disagree.
"""
