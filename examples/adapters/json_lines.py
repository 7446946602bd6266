"""A program that speaks JSON lines, in any language:
`dragoman serve --exec "python examples/adapters/json_lines.py" --exec-format json`."""

import json
import sys


def tell(**line: object) -> None:
    print(json.dumps(line), flush=True)


text = json.loads(input())["message"]["text"]
tell(say="Thinking")
if text.startswith("book"):
    tell(ask=f"Really {text}?")
    answer = json.loads(input())["answer"]["text"]
    tell(text=f"{text}: {answer}")
elif not text.strip():
    tell(reject="Say something.")
    sys.exit()
else:
    for word in text.split():
        tell(text=f"{word} ")
