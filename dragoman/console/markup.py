"""What agents and callers say, made safe to show: Markdown, JSON, sizes, differences.

Everything in here is data of strangers. Markdown is rendered without raw HTML and then sanitised by
a list of what may stay; links open nothing by themselves and no picture is loaded from anywhere.
"""

import difflib
import html
import re
from functools import cache
from typing import Any, cast

import msgspec
from markupsafe import Markup

# Longer texts are cut where they are shown, and whole where they are downloaded.
MAX_SHOWN = 64 * 1024
# Beyond this, text is shown as it is: parsing Markdown takes time by its length.
_MAX_MARKDOWN = 32 * 1024
_MAX_COLOURED = 48 * 1024
_MAX_LINE = 500
_MAX_DIFFED_LINES = 4000
_MAX_DIFFED_LINE = 2000
_TAGS = {
    *("p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "a"),
    *("ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
# Characters that reorder or hide what is beside them; shown as what they are.
_HIDDEN = {
    **dict.fromkeys([*range(0x00, 0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F]),
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]),
    **dict.fromkeys([0x200E, 0x200F, 0x061C, 0xFEFF]),
}
_VISIBLE = {code: f"⟨{code:04X}⟩" for code in _HIDDEN}


def visible(text: str) -> str:
    """Return a text in which nothing is hidden: controls and reordering marks by their numbers."""
    return text.translate(_VISIBLE)


def cut(text: str, most: int = MAX_SHOWN) -> tuple[str, int]:
    """Return the beginning of a text as it is shown, and how many characters are left out."""
    return visible(text[:most]), max(0, len(text) - most)


def markdown(text: str) -> Markup:
    """Return a message as people read it."""
    text, left = cut(text)
    if len(text) > _MAX_MARKDOWN:
        shown = Markup('<pre class="plain">{}</pre>').format(text)
    else:
        parser = _parser()
        tokens = parser.parse(text)
        for token in tokens:
            if token.type in ("heading_open", "heading_close"):
                # Below the headings of the page.
                token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
        rendered = parser.renderer.render(tokens, parser.options, {})
        import nh3

        shown = Markup(
            nh3.clean(
                rendered,
                tags=_TAGS,
                attributes={"a": {"href"}, "ol": {"start"}},
                url_schemes={"http", "https", "mailto"},
                link_rel="noopener noreferrer nofollow",
            )
        )
    return shown + (
        Markup('<p class="cut">… {:,} more characters</p>').format(left) if left else ""
    )


def line(text: str) -> str:
    """Return a message in a line of plain words, without the marks of Markdown."""
    import nh3

    text, _ = cut(text, _MAX_LINE)
    return " ".join(html.unescape(nh3.clean(markdown(text), tags=set())).split())


def ticked(text: str) -> Markup:
    """Return a text of ours in which what stands between backticks is code."""
    shown = str(Markup.escape(text))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", shown))


@cache
def _parser() -> Any:
    from markdown_it import MarkdownIt

    # Pictures would be loaded from elsewhere, so they stay text.
    return (
        MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table").disable("image")
    )


def pretty(value: Any, *, is_sorted: bool = False) -> str:
    """Return JSON as people read it."""
    body = msgspec.json.encode(value, order="sorted" if is_sorted else None)
    return msgspec.json.format(body, indent=2).decode()


def json_text(value: Any) -> Markup:
    """Return JSON with colours, as long as it is not too much."""
    text, left = cut(pretty(value))
    more = Markup('<span class="cut">… {:,} more characters</span>').format(left) if left else ""
    if len(text) > _MAX_COLOURED or left:
        return Markup('<pre class="code" tabindex="0">{}{}</pre>').format(text, more)
    return Markup('<pre class="code" tabindex="0">{}</pre>').format(_coloured(text))


def _coloured(text: str) -> Markup:
    import pygments
    from pygments import formatters, lexers

    # Its types are partly unknown. It escapes what it is given.
    made = cast(Any, formatters).HtmlFormatter(nowrap=True)
    return Markup(pygments.highlight(text, cast(Any, lexers).JsonLexer(), made))


def difference(before: Any, after: Any) -> Markup:
    """Return what changed between two values, line by line."""
    # Sorted: the order of members says nothing.
    old, new = (
        pretty(before, is_sorted=True).splitlines(),
        pretty(after, is_sorted=True).splitlines(),
    )
    if len(old) + len(new) > _MAX_DIFFED_LINES:
        return Markup('<p class="cut">There is too much to compare here: download both.</p>')
    lines = list(difflib.unified_diff(old, new, lineterm="", n=3))[2:]
    if not lines:
        return Markup('<p class="quiet">Nothing changed.</p>')
    kinds = {"+": "added", "-": "removed", "@": "place"}
    shown = [
        f'<span class="{kinds.get(line[:1], "same")}">{html.escape(_shortened(line))}</span>'
        for line in lines
    ]
    return Markup('<pre class="code diff" tabindex="0">%s</pre>' % "\n".join(shown))  # noqa: UP031 - escaped


def _shortened(line: str) -> str:
    """Return a line of JSON that may be a whole file."""
    text, left = cut(line, _MAX_DIFFED_LINE)
    return f"{text} … {left:,} more characters" if left else text


def size(count: int) -> str:
    """Return bytes as people read them."""
    amount = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError("the last unit takes everything")
