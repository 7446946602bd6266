"""What an author's functions take, also where annotations name what only a type checker knows.

From Python 3.14 on an annotation is evaluated when it is looked at, so that looking may fail:
before, such a name had to be a text. `typing.get_type_hints` tells what a name stands for.
"""

import inspect
import sys
from collections.abc import Callable, Collection
from typing import Any

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return the parameters of a function."""
        return inspect.signature(function, annotation_format=Format.STRING)

    def annotated_names(kind: type) -> Collection[str]:
        """Return the members of a class that have an annotation of its own."""
        return get_annotations(kind, format=Format.STRING)

else:

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return the parameters of a function."""
        return inspect.signature(function)

    def annotated_names(kind: type) -> Collection[str]:
        """Return the members of a class that have an annotation of its own."""
        return kind.__annotations__
