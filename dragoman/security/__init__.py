"""Whom we trust and where we go: the one way out of the process is `security.egress`."""
