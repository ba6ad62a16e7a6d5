"""The report on a built dataset: values first, then one self-contained page.

    ReportInputs --report_values--> plain values --render--> HTML

The pipeline gathers arrays into `ReportInputs`; `report_values` aggregates them into a JSON-able dictionary (curves
with their envelopes, histograms, tables, sentences in words); `render` draws that dictionary as one HTML page that
needs no network. `write_report` does both and leaves `report.html` and `report.json` in a folder. The package
imports no stage.
"""

from jax_diversity.report.aggregate import Curve, shorten
from jax_diversity.report.batch_values import MAX_SEGMENTS, shown_rows
from jax_diversity.report.inputs import (
    BatchInputs,
    ClusterInputs,
    CorpusInputs,
    DocumentGroups,
    ExtremeInputs,
    HeatMapInputs,
    OrderingInputs,
    PackingInputs,
    ProfileInputs,
    PurityInputs,
    ReferenceInputs,
    ReportInputs,
    RowInputs,
    SegmentInputs,
    TrainingInputs,
)
from jax_diversity.report.ordering_values import heat_map_bins
from jax_diversity.report.page import render, write_report
from jax_diversity.report.values import report_values

__all__ = [
    "MAX_SEGMENTS",
    "BatchInputs",
    "ClusterInputs",
    "CorpusInputs",
    "Curve",
    "DocumentGroups",
    "ExtremeInputs",
    "HeatMapInputs",
    "OrderingInputs",
    "PackingInputs",
    "ProfileInputs",
    "PurityInputs",
    "ReferenceInputs",
    "ReportInputs",
    "RowInputs",
    "SegmentInputs",
    "TrainingInputs",
    "heat_map_bins",
    "render",
    "report_values",
    "shorten",
    "shown_rows",
    "write_report",
]
