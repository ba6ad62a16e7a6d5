"""The public names and the modules they are in; `__init__.py` imports each when it is first used."""

from .characteristics import Characteristics as Characteristics
from .stored import StoredCounts as StoredCounts
from .token_counts import TokenCounts as TokenCounts

__all__: list[str]
