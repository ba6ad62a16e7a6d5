"""`python -m jax_diversity` is the command `jax-diversity`."""

import sys

from jax_diversity.cli.main import main

sys.exit(main())
