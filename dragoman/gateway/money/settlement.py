"""How a completed task is settled, pure: the requester accepts it, the payee gives its price back,
or the time for a dispute is over. Doing it twice does nothing more."""

from dragoman.errors import InsufficientCredits, UnsupportedOperation
from dragoman.gateway.money import order_rules
from dragoman.gateway.trust.observations import paid_effects
from dragoman.model.money import credits_text
from dragoman.model.order import DISPUTED, REFUNDED
from dragoman.model.task import TaskState
from dragoman.stores.interface.effects import Effect
from dragoman.stores.interface.orders import OrderFacts, OrderRow


def release(facts: OrderFacts, memo: str, at: int) -> list[Effect]:
    """Pay for an order that is delivered and not disputed; nothing for any other."""
    effects = order_rules.release(facts.order, memo, at)
    return [*effects, *paid_effects(facts, at)] if effects else []


def accept(facts: OrderFacts, at: int) -> list[Effect]:
    """Pay for a completed task that is in escrow; where it is paid already, nothing changes."""
    order = facts.order
    if order.state is not TaskState.COMPLETED:
        raise UnsupportedOperation("The task is not completed, so there is nothing to accept")
    if order.escrow == DISPUTED:
        raise UnsupportedOperation("The task is disputed; an operator of the gateway decides")
    if order.escrow == REFUNDED:
        raise UnsupportedOperation("The task was refunded, so there is nothing to pay")
    return release(facts, order_rules.ACCEPTED, at)


def refund(
    order: OrderRow, memo: str, at: int, *, is_refunded: bool, available: int
) -> list[Effect]:
    """Give back what a task cost, or would have. `available` is what its payee can spend."""
    if is_refunded or (order.escrow == REFUNDED and order.state is TaskState.COMPLETED):
        return []
    if order.is_in_escrow:
        return order_rules.give_back(order, memo, at)
    if not order.charged:
        raise UnsupportedOperation("The task cost nothing, so there is nothing to give back")
    if available < order.earning:
        raise InsufficientCredits(
            "The payee of the task has spent what it brought in",
            balance=credits_text(available),
            needed=credits_text(order.earning),
        )
    return order_rules.refund(order, memo, at)
