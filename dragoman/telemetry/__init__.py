"""Metrics, traces and logs.

`metrics.py` counts, `figures.py` declares every metric, `page.py` renders them. `tracing.py`
handles the W3C trace context without OpenTelemetry; `exporting.py` and `spans.py` load its SDK only
if a collector is configured. `observation.py` covers one request. Imports model, config, errors and
the redaction of `security`. Begin with `figures.py` and `tracing.py`.
"""
