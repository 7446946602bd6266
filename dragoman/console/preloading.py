"""What draws pages: libraries, modules and templates, half a second of processor together."""

from collections.abc import Iterator


def pieces() -> Iterator[None]:
    """Load it, one piece with each step."""
    from dragoman.console import console, markup, rendering

    assert console, "it answers visitors"

    yield
    from dragoman.console import pages

    assert pages.paths(), "there are pages"
    yield
    templates = rendering.environment()
    yield
    for name in templates.list_templates(["html"]):
        templates.get_template(name)
        yield
    markup.markdown("*text*")
    yield
    markup.json_text({})
