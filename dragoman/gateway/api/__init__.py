"""The gateway's REST API: `/api/v1/`, and the catalog beside it.

One table says what there is; the routes, the checks of requests and the OpenAPI document all come
from it, so that they cannot disagree. Imports the gateway and its rooms, `server/` and what is
below it; only `gateway/app.py` imports it. Begin with `table.py`, then `api.py`.
"""
