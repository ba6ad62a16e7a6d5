"""The public names and the modules they are in; `__init__.py` imports each when it is first used."""

from .documents import Document as Document
from .documents import Segments as Segments
from .orderings import Ordering as Ordering

__all__: list[str]
