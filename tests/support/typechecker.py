"""The type checker of the tests: beartype, with integers accepted where floats are."""

from beartype import BeartypeConf, beartype

typecheck = beartype(conf=BeartypeConf(is_pep484_tower=True))
