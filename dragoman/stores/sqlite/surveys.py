"""Pages of the tasks of all owners, latest status first.

The indexes go by scope, so that writes need no further one: each scope is asked for what is later
than the last task of the page so far. Most scopes then answer with nothing, in one look-up.
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import apsw

from dragoman.stores.columns import STATE_NUMBERS
from dragoman.stores.interface import Survey
from dragoman.stores.sqlite.schema import Row, one_moment, run

# Columns of a row.
_place = itemgetter(5, 0)


def surveyed(connection: apsw.Connection, sql: Mapping[str, str], survey: Survey) -> list[Row]:
    """Return a page of rows, all of one moment."""
    values = survey_values(survey)
    with one_moment(connection):
        if survey.task_id:
            return run(connection, sql["survey_of_id"], values)
        page = sql[_page(survey)]
        found: list[Row] = []
        for (scope,) in run(connection, sql["survey_scopes"], values):
            rows = run(connection, page, values | {"scope": scope})
            if not rows:
                continue
            found = sorted([*found, *rows], key=_place, reverse=True)[: survey.limit]
            if len(found) == survey.limit:
                values["since"] = max(survey.status_since, _place(found[-1])[0])
        return found


def _page(survey: Survey) -> str:
    if survey.context_id:
        return "page_of_context"
    return "page" if survey.state is None else "page_of_state"


def survey_values(survey: Survey) -> dict[str, Any]:
    """Return what the named queries of surveys take."""
    status_at, number = survey.starts_below()
    who = survey.principal
    own, unbound = (None, None) if who is None else who.owners()
    return {
        "id": survey.task_id,
        "agent": survey.agent,
        "tenant": survey.tenant,
        "owner": survey.owner,
        "own_tenant": None if who is None else who.tenant,
        "own": own,
        "unbound": unbound,
        "state": None if survey.state is None else STATE_NUMBERS[survey.state],
        "context": survey.context_id,
        "since": survey.status_since,
        "status_at": status_at,
        "number": number,
        "limit": survey.limit,
    }
