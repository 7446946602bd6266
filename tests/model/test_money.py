"""Amounts: exact both ways, and the fee of a price as the vectors have it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.model.money import CENT, LARGEST, MICRO, Terms, credits_text, micro_credits

VECTORS = [
    ("10", "0.50", "9.50"),
    ("3", "0.15", "2.85"),
    ("1.11", "0.06", "1.05"),
    ("0.10", "0.01", "0.09"),
    ("0.05", "0.00", "0.05"),
    ("99.99", "5.00", "94.99"),
]


@pytest.mark.parametrize(("price", "fee", "earning"), VECTORS)
def test_a_price_is_divided_as_the_vectors_say(price: str, fee: str, earning: str) -> None:
    shares = Terms().shares(micro_credits(price))
    assert (credits_text(shares.fee), credits_text(shares.earning)) == (fee, earning)


@given(st.integers(0, LARGEST), st.integers(0, MICRO))
def test_fee_and_earning_are_the_price_and_neither_is_negative(price: int, rate: int) -> None:
    shares = Terms(rate).shares(price)
    assert shares.fee + shares.earning == price
    assert shares.fee >= 0 and shares.earning >= 0
    # Rounded to cents, halves up: never further than half a cent from the share itself.
    if shares.fee < price:
        assert shares.fee % CENT == 0
        assert -CENT * MICRO < 2 * (shares.fee * MICRO - price * rate) <= CENT * MICRO


@given(st.integers(0, LARGEST))
def test_an_amount_survives_being_written_and_read(amount: int) -> None:
    assert micro_credits(credits_text(amount)) == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [("12", 12_000_000), ("0.25", 250_000), ("0.000001", 1), (" 7.5 ", 7_500_000)],
)
def test_amounts_are_read_to_the_last_decimal(text: str, amount: int) -> None:
    assert micro_credits(text) == amount


@pytest.mark.parametrize(
    "text",
    ["", "-1", "1e3", "0.0000001", "1,5", "٣", "NaN", "Infinity", "1.", ".5", "1000000001", "1 0"],
)
def test_what_is_no_amount_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        micro_credits(text)


def test_amounts_are_shown_with_two_decimals_and_more_only_where_there_are() -> None:
    assert credits_text(1_000 * MICRO) == "1000.00"
    assert credits_text(-9_500_000) == "-9.50"
    assert credits_text(1) == "0.000001"
    assert credits_text(1_230_000) == "1.23"
    assert credits_text(0) == "0.00"
