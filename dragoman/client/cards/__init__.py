"""From what a user wrote to an agent's card and one of its interfaces.

References are resolved, cards fetched, read leniently and kept as long as HTTP allows. Begin with
`cards.py`.
"""
