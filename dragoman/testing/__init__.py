"""For tests, ours and yours: what a store promises, as tests that any store can be put to."""
