"""More load than a server can take, and one caller that wants it all. Begin with `overload.py`."""
