"""What an operator asks of a database besides its tasks: how it is set, and whether it is whole.

Imports the connections of the store. Begin with `health.py`.
"""
