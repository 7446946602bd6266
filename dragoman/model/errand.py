"""What a forwarded task means to those who keep books: who asked, who does it, what it costs."""

from typing import Literal

import msgspec

from dragoman.model.identity import LOCAL, Principal

# Where the price of a task is, where it goes through an escrow: reserved while it is worked on, and
# still reserved after it was completed; disputed meanwhile; then paid, by its requester's word, in
# time or by an operator's decision; or given back.
Escrow = Literal["funded", "delivered", "disputed", "released", "resolved", "refunded"]


class Errand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A task one party does for another. Amounts are micro-credits: see `model.money`."""

    # The registered agent that does it, by its id; empty: nobody was chosen yet.
    agent: str = ""
    # Who asked, and whom the agent belongs to.
    requester: Principal = LOCAL
    payee: Principal = LOCAL
    # Reserved when the task is made, and taken when it is completed.
    held: int = 0
    price: int = 0
    skill: str = ""
    # When it began, in milliseconds since the epoch; 0: when it is written.
    began_at: int = 0
    # When it has to have ended, in milliseconds since the epoch; 0: whenever.
    due_at: int = 0
    # How often it was sent again, to the same agent or to another one, since it was written.
    retries: int = 0
    # Why it ended as it did, where the state does not tell: `timeout`, `unreachable`, `invalid`.
    cause: str = ""
