"""What an operation costs, in bytecode instructions: no busy machine changes that."""

from bench.instructions import MOST_SHARE, ceilings, counts, share


def test_no_operation_takes_more_instructions_than_its_ceiling() -> None:
    allowed = ceilings()
    counted = counts()
    assert counted.keys() == allowed.keys()
    above = {
        name: (count.instructions, count.functions)
        for name, count in counted.items()
        if count.instructions > allowed[name]
    }
    assert not above
    # A count that no work could have is a broken counter.
    assert all(count.instructions > allowed[name] / 2 for name, count in counted.items())


def test_http_pays_little_for_grpc_on_its_port() -> None:
    assert share() <= MOST_SHARE
