"""Log format: structlog for all log lines, also for those of uvicorn."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

from app.logs.rate_limit import limit_lines
from app.logs.secret_urls import SecretUrls

LogFormat = Literal["console", "json"]


def configure_logging(log_format: LogFormat) -> None:
    """Log to stderr, for people or as JSON lines."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(log_format)],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(SecretUrls())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    for verbose in ("alembic", "uvicorn.error"):
        logging.getLogger(verbose).setLevel(logging.WARNING)
    limit_lines()
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _renderers(log_format: LogFormat) -> list[structlog.types.Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
