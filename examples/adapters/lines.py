"""A program that reads text and prints text, in any language:
`dragoman serve --exec "python examples/adapters/lines.py"`."""

import sys

# The message is all of stdin; each line is shown when it is printed.
for number, line in enumerate(sys.stdin, start=1):
    print(f"{number}: {line.rstrip()}", flush=True)
