"""What an agent asks of its callers, and what the user has to answer it with.

Schemes of the card, OAuth flows, logins kept between runs, and the origins that credentials may go
to. Begin with `credentials.py`.
"""
