"""OpenTelemetry, by FastAPI's own support: off by default, and without anything that could be a secret."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from fastapi.telemetry import TelemetryConfig

from app.settings import Settings, SettingsError
from blocklist import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_OFF: Final = TelemetryConfig(tracing=False, metrics=False, logs=False)
_EXCLUDED_PATHS: Final = ("/healthz", "/readyz", "/metrics", "/blocklist", "/blocklist/watch")
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def telemetry_config(settings: Settings) -> TelemetryConfig:
    """FastAPI's configuration. Raises SettingsError if something is missing for BLOCKLIST_TELEMETRY=otlp."""
    if settings.telemetry == "off":
        return _OFF
    if not all(map(_is_installed, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"))):
        raise SettingsError("BLOCKLIST_TELEMETRY=otlp needs two more packages: pip install 'blocklist[telemetry]'")
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        raise SettingsError("BLOCKLIST_TELEMETRY=otlp needs OTEL_EXPORTER_OTLP_ENDPOINT, such as http://127.0.0.1:4318")
    # No logs: they would contain the messages of errors.
    return TelemetryConfig(
        tracer_provider=_tracer_provider(), logs=False, operation_spans=False, auto_configure=True, exclude=_is_excluded
    )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        # The package that would contain it is missing.
        return False


def _tracer_provider() -> TracerProvider:
    # Imported here, because the packages are optional.
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider  # noqa: PLC0415

    class WithoutQuery(SpanProcessor):
        """Removes queries, which may contain a secret by mistake."""

        def on_start(self, span: Span, parent_context: Any = None) -> None:  # noqa: ARG002
            if isinstance(span, ReadableSpan) and "url.query" in (span.attributes or {}):
                span.set_attribute("url.query", "REDACTED")

    attributes = {"service.version": __version__}
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes["service.name"] = "blocklist"
    provider = TracerProvider(resource=Resource.create(attributes))
    provider.add_span_processor(WithoutQuery())
    return provider


def _is_excluded(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request is not traced: probes and polls, which are too many, and streams, which do not end."""
    path = scope["path"]
    is_ndjson = path == "/blocklist/changes" and any(b"ndjson" in value for name, value in scope["headers"])
    return path in _EXCLUDED_PATHS or path.startswith("/static/") or is_ndjson
