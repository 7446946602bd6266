"""`dragoman init`: the beginning of a project that runs and tests itself."""

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import click

from dragoman.cli.failures import similar, usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import own, typed_option

# What each is, and the lines that try it; a line may name the module.
_TEMPLATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "agent": ("an agent", ("dragoman serve {module}.py", 'dragoman send -a 127.0.0.1:8000 "Ada"')),
    "client": (
        "a program that calls agents",
        ("dragoman up", 'python {module}.py 127.0.0.1:8000 "hello"'),
    ),
    "gateway": (
        "an agent behind a gateway",
        (
            "dragoman up --no-demo",
            "dragoman serve {module}.py --port 9001",
            "dragoman agents register http://127.0.0.1:9001 --price 0.5 --default",
            'dragoman send -a 127.0.0.1:8000 "Ada"',
        ),
    ),
    "pair": (
        "an agent that has another one work",
        ("dragoman serve {module}.py", 'dragoman send -a 127.0.0.1:8000 "one two three"'),
    ),
    "approval": (
        "an agent that asks before it acts",
        ("dragoman serve {module}.py", 'dragoman chat -a 127.0.0.1:8000 "250"'),
    ),
    "mcp": (
        "the tools of an MCP server as an agent",
        (
            "dragoman serve {module}.py",
            "dragoman send -a 127.0.0.1:8000 --data '{{\"celsius\": 20}}'",
        ),
    ),
}
_SKILL = Path(".agents", "skills", "dragoman")
# Goes into Python and TOML as it is.
_TITLE = re.compile(r"[^\x00-\x1f\x7f\"'\\$`]{1,80}")


@command("init")
@click.argument("folder", required=False, default=".", metavar="[DIR]")
@own(
    "--template",
    default="agent",
    metavar=f"<{'|'.join(_TEMPLATES)}>",
    help="What to begin: "
    + ", ".join(f"{about} ({name})" for name, (about, _) in _TEMPLATES.items()),
)
@own("--name", default="", metavar="<name>", help="Its name (the folder's).")
@own("--skill", switch=True, help="Also install the skill that tells assistants how to use us.")
@typed_option("--force", switch=True, help="Overwrite existing files.")
@typed_option("--dry-run", switch=True, help="Only print what would be made.")
def init(
    run: Invocation,
    folder: str,
    template: str,
    name: str,
    skill: bool,
    force: bool,
    dry_run: bool,
) -> None:
    """Create a project in DIR: code, a test that calls it, and a README with the commands."""
    if template not in _TEMPLATES:
        raise usage(
            f"--template must be one of {', '.join(_TEMPLATES)}",
            remedy=f"--template {similar(template, [*_TEMPLATES]) or 'agent'}",
        )
    root = Path(folder).expanduser()
    if root.exists() and not root.is_dir():
        raise usage(f"{folder} is a file; name a folder", "dragoman init my_agent")
    title = name or (run.folder / root).resolve().name or "agent"
    if not _TITLE.fullmatch(title):
        raise usage("--name must be one line without quotes, backslashes or dollar signs")
    files = _scaffold(template, title)
    if skill:
        files |= _skill()
    taken = [str(root / path) for path in files if (root / path).exists()]
    if taken and not force:
        from dragoman.cli.hints import again

        raise usage(
            f"{', '.join(taken)}: exists already; --force replaces it", again(run, "--force")
        )
    if not dry_run:
        for path, content in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    _show(run, root, list(files), _next(root, template, _module(title)))


def _module(title: str) -> str:
    """Return a name that Python can import and no module of its own has."""
    found = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
    if not found or not found[0].isalpha():
        found = f"agent_{found}".rstrip("_")
    return f"{found}_agent" if _is_taken(found) else found


def _is_taken(module: str) -> bool:
    """Tell whether Python, this package or an installed library has a module of the name: whoever
    imports it would get the project's file instead."""
    import keyword
    import sys
    import sysconfig
    from importlib.machinery import PathFinder

    # `mcp` is what the template of an MCP server imports, installed or not.
    names = {*sys.stdlib_module_names, "dragoman", "mcp", "tests"}
    libraries = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    is_installed = PathFinder.find_spec(module, libraries) is not None
    return keyword.iskeyword(module) or module in names or is_installed


def _scaffold(template: str, title: str) -> dict[Path, bytes]:
    module = _module(title)
    values = {"title": title, "module": module, "project": module.replace("_", "-")}
    places = {
        "pyproject.toml": Path("pyproject.toml"),
        "module.py": Path(f"{module}.py"),
        "test_module.py": Path("tests", f"test_{module}.py"),
        "README.md": Path("README.md"),
    }
    source = resources.files("dragoman.cli") / "templates" / template
    return {
        place: Template((source / f"{name}.tmpl").read_text("utf-8")).substitute(values).encode()
        for name, place in places.items()
    }


def _skill() -> dict[Path, bytes]:
    source = resources.files("dragoman") / "skills" / "dragoman"
    found = {_SKILL / path: content for path, content in _walk(source, Path())}
    if not found:
        raise usage("--skill: this installation has no skill to install")
    return found


def _walk(folder: Traversable, place: Path) -> "list[tuple[Path, bytes]]":
    if not folder.is_dir():
        return []
    found: list[tuple[Path, bytes]] = []
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            found += _walk(entry, place / entry.name)
        elif not entry.name.endswith((".py", ".pyc")):
            found.append((place / entry.name, entry.read_bytes()))
    return found


def _next(root: Path, template: str, module: str) -> list[str]:
    import shlex

    from dragoman.cli.hints import activation

    enter = [] if root == Path() else [f"cd {shlex.quote(str(root))}"]
    lines = [line.format(module=module) for line in _TEMPLATES[template][1]]
    return [*activation(), *enter, "python -m unittest discover tests", *lines]


def _show(run: Invocation, root: Path, files: list[Path], following: list[str]) -> None:
    paths = [str(root / path) for path in files]
    if run.out.is_json:
        run.out.json({"dir": str(root), "files": paths, "next": following})
        return
    for path in paths:
        run.out.field("File", path)
    for line in following:
        run.out.field("Next", line)
