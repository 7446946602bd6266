"""A SQLite store with all that a gateway keeps beside the tasks, in the same file.

Apart from `store.py`, so that a server without a gateway loads none of it.
"""

from typing import Any

from dragoman.stores.sqlite.ledger.accounting import SQLiteAccounting
from dragoman.stores.sqlite.registry.agent_keys import SQLiteAgentKeys
from dragoman.stores.sqlite.registry.agents import SQLiteAgents
from dragoman.stores.sqlite.registry.rollouts import SQLiteRollouts
from dragoman.stores.sqlite.registry.triggers import SQLiteTriggers
from dragoman.stores.sqlite.registry.workflows import SQLiteWorkflows
from dragoman.stores.sqlite.store import SQLiteStore


class SQLiteGatewayStore(SQLiteStore):
    """The store of a gateway. It takes the arguments of `SQLiteStore`."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.accounting = SQLiteAccounting(self)
        self.agents = SQLiteAgents(self)
        self.agent_keys = SQLiteAgentKeys(self)
        self.workflows = SQLiteWorkflows(self)
        self.triggers = SQLiteTriggers(self)
        self.rollouts = SQLiteRollouts(self)
