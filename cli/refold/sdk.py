"""OpenTelemetry's SDK for the command line, set up by OpenTelemetry's own variables.

Rules of this module
- Imported only if one of VARIABLES is set: a lookup loads no SDK otherwise.
- Standard output belongs to the command: the console exporter writes to standard error.
- A command goes on without what cannot be set up, and says so in one line.
"""

from __future__ import annotations

import os
import sys
from functools import cache

import click

VARIABLES = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
"""Any of them asks for an SDK. An endpoint alone means the exporter `otlp`."""
PROVIDERS = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER")
"""Any of them names a provider of another package, by its entry point."""


@cache
def configure_sdk() -> None:
    """Set tracer and meter provider of this process, once: exporters `otlp` (extra `otlp`), `console`, `none`."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    for signal, configure in (("TRACES", _traces), ("METRICS", _metrics)):
        exporter = _exporter(signal)
        try:
            if exporter in ("otlp", "console"):
                configure(exporter)
            elif exporter != "none":
                _say(f"OTEL_{signal}_EXPORTER={exporter!r} is not known here; one of: otlp, console, none")
        except ImportError:
            _say(f"exporting {signal.lower()} needs the extra: pip install 'refold[otlp]'")
        except Exception as error:  # the SDK raises what it likes for a wrong value, some of it while it is imported
            _say(f"exporting {signal.lower()} cannot be set up by the OTEL_ variables: {_words(error)}")


def check_providers() -> None:
    """Drop a provider that a variable names and nothing installed has: asking the API for it would fail later."""
    from opentelemetry import metrics, trace

    for name, get in zip(PROVIDERS, (trace.get_tracer_provider, metrics.get_meter_provider), strict=True):
        if os.environ.get(name):
            try:
                get()
            except Exception as error:  # whatever the named provider raises while it is loaded
                _say(f"{name}={os.environ.pop(name)!r} cannot be loaded: {_words(error)}")


def _exporter(signal: str) -> str:
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    default = "otlp" if any(os.environ.get(name) for name in endpoints) else "none"
    return os.environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() or default


def _traces(exporter: str) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    made: SpanExporter
    if exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        made = OTLPSpanExporter()
    else:
        made = ConsoleSpanExporter(out=sys.stderr)
    _name_service()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(made))
    trace.set_tracer_provider(provider)


def _metrics(exporter: str) -> None:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExporter, PeriodicExportingMetricReader

    made: MetricExporter
    if exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        made = OTLPMetricExporter()
    else:
        made = ConsoleMetricExporter(out=sys.stderr)
    _name_service()
    metrics.set_meter_provider(MeterProvider(metric_readers=[PeriodicExportingMetricReader(made)]))


def _name_service() -> None:
    if "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", "refold")


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _say(words: str) -> None:
    click.echo(f"refold: {words}; going on without", err=True)
