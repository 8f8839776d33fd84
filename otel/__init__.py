"""OpenTelemetry: the observer `OpenTelemetry` records spans and metrics of runs, and
`instrument_queue` measures a queue of jobs. Needs the extra `otel`, which is the API alone; the
application sets up the SDK.
"""

from ..extras import install_command

try:
    from .observer import OpenTelemetry, instrument
    from .queues import instrument_queue
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("opentelemetry"):
        raise
    raise ModuleNotFoundError(
        f"stategraph.otel needs OpenTelemetry's API: {install_command('otel')}"
    ) from error

__all__ = ["OpenTelemetry", "instrument", "instrument_queue"]
