"""Requests that are refused without the app, at the cost of a few comparisons.

`early` decides while a head is read, by overload and by what is remembered of callers over their
rate (`limited_callers`); `delayed` writes refusals together where many wait, and
`refused_connections` reads together those who were refused. It imports what `http/` does. Begin
with `early`.
"""
