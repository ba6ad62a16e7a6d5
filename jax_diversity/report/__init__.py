"""The report on a built dataset: values first, then one self-contained page.

    ReportInputs --report_values--> plain values --render--> HTML

The pipeline gathers arrays into `ReportInputs`; `report_values` aggregates them into a JSON-able dictionary (curves
with their envelopes, histograms, tables, sentences in words); `render` draws that dictionary as one HTML page that
needs no network. `write_report` does both and leaves `report.html` and `report.json` in a folder. The package
imports no stage.
"""
