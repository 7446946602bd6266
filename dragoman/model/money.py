"""Credits: whole micro-credits inside, decimal text outside, without rounding in between.

What a platform keeps of a price is rounded to hundredths of a credit, halves up; the rest is the
agent's, so that both together are the price.
"""

import re
from typing import NamedTuple

import msgspec

from dragoman.model.patterns import late_pattern

MICRO = 1_000_000
# A thousand million credits: what thousands of such amounts come to still fits 64 bits.
LARGEST = 1_000_000_000 * MICRO
# What a fee is rounded to.
CENT = MICRO // 100
# Metadata: the most that a task may cost, from the caller; what it cost, from the gateway.
LIMITS = ("maxBudget", "maxPrice")
COST = "dragoman/cost"
_DECIMALS = 6
_TEXT = late_pattern(r"([0-9]{1,10})(?:\.([0-9]{1,6}))?", re.ASCII)


def micro_credits(text: str) -> int:
    """Return the amount that a text names, such as `1.11`; raises `ValueError`."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError("must be an amount of credits such as 12 or 0.25, to six decimals")
    whole, part = found.groups()
    amount = int(whole) * MICRO + int((part or "").ljust(_DECIMALS, "0"))
    if amount > LARGEST:
        raise ValueError(f"must not be more than {LARGEST // MICRO} credits")
    return amount


def credits_text(amount: int) -> str:
    """Return an amount for people and programs: two decimals, and more only where there are."""
    whole, part = divmod(abs(amount), MICRO)
    digits = f"{part:06}".rstrip("0").ljust(2, "0")
    return f"{'-' if amount < 0 else ''}{whole}.{digits}"


class PriceShares(NamedTuple):
    """How a price is divided."""

    fee: int
    earning: int


class Terms(msgspec.Struct, frozen=True):
    """What a new account begins with, what the platform keeps of a price, and how long a price
    stays reserved after its task is completed."""

    # Millionths of the price.
    rate: int = 50_000
    grant: int = 1_000 * MICRO
    # Milliseconds; 0: it is taken at once.
    escrow: int = 0

    def shares(self, price: int) -> PriceShares:
        """Divide a price into the fee and what is earned."""
        # In halves of a cent, so that rounding half up is a whole division.
        cents = (2 * price * self.rate + MICRO * CENT) // (2 * MICRO * CENT)
        # The fee of less than a cent may round to more than the price.
        fee = min(cents * CENT, price)
        return PriceShares(fee, price - fee)
