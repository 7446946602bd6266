"""A store copied into another one: a file into a database, and back.

`tables.py` says what there is to copy, `files.py` and `databases.py` read and write it, and
`copying.py` does it in batches and verifies what came of it. Imports the stores of a file and of a
database. Begin with `copying.py`.
"""
