"""What the command line prints: tables and small curves that read well at 80 columns, and what to do next."""

from jax_diversity.terminal.curves import speaks_unicode
from jax_diversity.terminal.guidance import next_steps, open_report, report_line
from jax_diversity.terminal.inspecting import as_json, batch_table, uses_table
from jax_diversity.terminal.measuring import measures_legend, profile_plots, training_curves
from jax_diversity.terminal.tables import build_table, methods_list, orderings_table, show, training_line

__all__ = [
    "as_json",
    "batch_table",
    "build_table",
    "measures_legend",
    "methods_list",
    "next_steps",
    "open_report",
    "orderings_table",
    "profile_plots",
    "report_line",
    "show",
    "speaks_unicode",
    "training_curves",
    "training_line",
    "uses_table",
]
