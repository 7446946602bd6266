"""The console: what people look at in a browser, at `/console`.

It is a client of the routes that programs have: a page asks for JSON inside the process, with the
caller's own credential, and fills a template. Begin with `part.py`, then any file of `pages/`.
"""
