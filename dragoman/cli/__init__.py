"""The command line: what people and scripts type.

Each command parses, calls and prints; the work is in the rooms below. This folder has what all
commands share: the grammar, options and where they come from, output, failures; `terminal/` is for
people alone. Commands are in `calling/` (talk to agents), `checking/` (test and measure them),
`serving/` (run agents), `gateway/` (ask a running gateway) and `operating/` (operate a store). It
may import every other room. Begin with `main.py`, the table of commands.
"""
