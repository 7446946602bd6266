"""An order: the task that one party does for another, as the ledger sees it."""

from typing import Literal

import msgspec

from dragoman.model.identity import LOCAL, Principal

# Where the price of a task is, if it goes through an escrow. `funded`: reserved while the task is
# worked on. `delivered`: completed, still reserved. `disputed`: reserved until an operator decides.
# `released` and `resolved`: paid. `refunded`: given back.
Escrow = Literal["funded", "delivered", "disputed", "released", "resolved", "refunded"]
FUNDED, DELIVERED, DISPUTED = "funded", "delivered", "disputed"
RELEASED, RESOLVED, REFUNDED = "released", "resolved", "refunded"


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a write says of a task's order. Amounts are micro-credits: see `model.money`."""

    # The registered agent that does the task, by its id; empty: none was chosen yet.
    agent: str = ""
    # The caller that pays, and the owner of the agent.
    requester: Principal = LOCAL
    payee: Principal = LOCAL
    # Reserved when the task is made, and taken when it is completed.
    held: int = 0
    price: int = 0
    skill: str = ""
    # When it began, in milliseconds since the epoch; 0: when it is written.
    began_at: int = 0
    # When it has to have ended, in milliseconds since the epoch; 0: no deadline.
    due_at: int = 0
    # How often the task was sent again, to the same agent or to another one, since the last write.
    retries: int = 0
    # Why it ended as it did, where the state does not tell: `timeout`, `unreachable`, `invalid`.
    cause: str = ""
