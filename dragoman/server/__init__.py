"""What an author writes, and the ASGI app that serves it: the parts joined by hand."""
