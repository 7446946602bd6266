"""Build the site over these pages: `python docs/site.py build`, as `./dev docs` does.

The builder and its plugins are the extra `docs`. They live in an environment of their own, which
is made on demand, so that `./dev setup` need not fetch them. Nothing is loaded from the network
while a site is built, nor by its pages.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CONFIGURATION = ROOT / "mkdocs.yml"
# The first paragraph that is neither a heading, a table, a list, a block nor a comment.
_PARAGRAPH = re.compile(r"(?:^|\n\n)(?=[A-Z`\[])(.+?)(?=\n\n|\Z)", re.DOTALL)
_BLOCK = re.compile(r"^```.*?^```$|^<!--.*?-->$|^#[^\n]*$", re.MULTILINE | re.DOTALL)
USAGE = """usage: python docs/site.py COMMAND

  build            build the site into build/site; a warning is an error
  successor        build it with zensical, the successor of mkdocs-material
  serve            show it on http://127.0.0.1:8000 and follow changes
  release VERSION  keep it as VERSION and as `latest` on the local branch gh-pages
"""


def requirements() -> list[str]:
    """Return what the extra `docs` needs, at the versions of constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extra = project["project"]["optional-dependencies"]["docs"]
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    )
    return [f"{name}=={pins[name]}" for name in map(_package, extra)]


def _package(requirement: str) -> str:
    return re.split(r"[\[<>=]", requirement)[0]


def program(name: str) -> Path:
    """Return a program of the environment, which is made first if it is missing."""
    sys.path.insert(0, str(ROOT))
    from proof.environments import made, make_python

    wanted = requirements()
    pins = ["--constraint", str(ROOT / "constraints.txt")]
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    folder_name = "-".join([*wanted, version]).replace("==", "-")
    folder = made(folder_name, lambda folder: make_python(folder, [*wanted, *pins]))
    return folder / "bin" / name


def pages() -> Iterator[tuple[str, str, Path]]:
    """Yield section, title and file of every page, in the order of the site."""
    navigation = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))["nav"]

    def below(entries: list[Any], section: str) -> Iterator[tuple[str, str, Path]]:
        for entry in entries:
            ((title, target),) = entry.items()
            if isinstance(target, list):
                yield from below(target, section or title)
            else:
                yield section, title, DOCS / target

    return below(navigation, "")


def summary(page: Path) -> str:
    """Return the first sentences of a page on one line, without markup of links."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    found = _PARAGRAPH.search(text)
    words = " ".join((found[1] if found else "").split())
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", words)
    return plain if len(plain) <= 300 else f"{plain[:300].rpartition('. ')[0]}."


def llms() -> str:
    """Return the list of pages for language models: https://llmstxt.org."""
    lines = ["# Dragoman", "", f"> {summary(DOCS / 'index.md')}"]
    shown = ""
    for section, title, page in pages():
        if section != shown:
            lines += ["", f"## {section}", ""]
            shown = section
        if section:
            lines.append(f"- [{title}]({page.stem}.html): {summary(page)}".rstrip(": "))
    return "\n".join([*lines, ""])


def llms_full() -> str:
    """Return all pages as one text."""
    return "\n\n".join(page.read_text(encoding="utf-8").strip() for _, _, page in pages()) + "\n"


def write_texts() -> None:
    """Write both texts beside the pages, from where every builder takes them along."""
    (DOCS / "llms.txt").write_text(llms(), encoding="utf-8")
    (DOCS / "llms-full.txt").write_text(llms_full(), encoding="utf-8")


def run(name: str, *arguments: str) -> int:
    """Run a program of the environment at the top of the repository."""
    write_texts()
    found = program(name)
    variables = os.environ | {
        # The announcement of mkdocs-material's end is known, and why `successor` is here.
        "NO_MKDOCS_2_WARNING": "1",
        # mike starts mkdocs by its name.
        "PATH": os.pathsep.join([str(found.parent), os.environ.get("PATH", os.defpath)]),
    }
    return subprocess.run([found, *arguments], cwd=ROOT, env=variables).returncode


def main(arguments: list[str]) -> int:
    match arguments or ["build"]:
        case ["build", *options]:
            return run("mkdocs", "build", "--strict", *options)
        case ["successor", *options]:
            return run("zensical", "build", "--strict", *options)
        case ["serve", *options]:
            return run("mkdocs", "serve", *options)
        case ["release", version]:
            return run("mike", "deploy", "--update-aliases", version, "latest")
        case _:
            print(USAGE, end="", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
