"""Make the report on a built dataset: first its values, then one self-contained page.

    dataset --report_values--> plain values --render--> HTML

`values.report_values` computes the page's content from the dataset, as a dictionary for JSON: curves with
their smallest and largest values, histograms, tables, sentences. `page.render` draws that dictionary as one HTML page
that needs no network. The stage writes both: `report.json` and `report.html`.
"""
