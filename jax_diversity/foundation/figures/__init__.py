"""Draw interactive figures of orders and datasets: one drawing for the report page and for notebooks.

The drawing code is JavaScript for plotly.js. A figure is a function of values (plain JSON, as in `report.json`), a
palette and a few choices; `catalogue.js` lists all figures. `Figure` draws one of them in a page of its own.
"""
