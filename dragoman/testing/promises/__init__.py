"""What every store promises, as classes of tests: one suite per group of `stores.interface`.

Subclass a suite, `StorePromises` for all that the engine needs, or `GatewayStorePromises` for what
a gateway needs beside it, under a name that starts with `Test`. Give it a fixture `store` that
yields an open, empty store (a gateway's with `SampleRules` of `orders.py`), and say in `successor`
how another worker comes to the same data. The tests are plain coroutines, for a runner such as
anyio's plugin. The suites import the interfaces and the model, never a store. Begin with
`writes.py`; `samples.py` makes what they write.
"""

from dragoman.testing.promises.agent_keys import AgentKeyPromises
from dragoman.testing.promises.agents import AgentPromises
from dragoman.testing.promises.leases import LeasePromises
from dragoman.testing.promises.ledger import LedgerPromises
from dragoman.testing.promises.orders import SampleRules
from dragoman.testing.promises.pages import PagePromises
from dragoman.testing.promises.pruning import PruningPromises
from dragoman.testing.promises.pushes import PushPromises
from dragoman.testing.promises.reads import ReadPromises
from dragoman.testing.promises.rollouts import RolloutPromises
from dragoman.testing.promises.triggers import TriggerPromises
from dragoman.testing.promises.trust import TrustPromises
from dragoman.testing.promises.words import WordPromises
from dragoman.testing.promises.workflows import WorkflowPromises
from dragoman.testing.promises.writes import WritePromises


class StorePromises(
    WritePromises,
    ReadPromises,
    PagePromises,
    WordPromises,
    LeasePromises,
    PushPromises,
    PruningPromises,
):
    """Every promise of `stores.interface.Store`."""


class GatewayStorePromises(
    AgentPromises,
    AgentKeyPromises,
    WorkflowPromises,
    TriggerPromises,
    RolloutPromises,
    LedgerPromises,
    TrustPromises,
):
    """Every promise of what a gateway keeps beside the tasks."""


__all__ = [
    "AgentKeyPromises",
    "AgentPromises",
    "GatewayStorePromises",
    "LeasePromises",
    "LedgerPromises",
    "PagePromises",
    "PruningPromises",
    "PushPromises",
    "ReadPromises",
    "RolloutPromises",
    "SampleRules",
    "StorePromises",
    "TriggerPromises",
    "TrustPromises",
    "WordPromises",
    "WorkflowPromises",
    "WritePromises",
]
