"""OpenTelemetry: `OpenTelemetry`, an observer that makes spans and metrics of runs. Needs the extra
`otel`, which is the API alone; the application sets up the SDK.
"""

from ..extras import install_command

try:
    from .observer import OpenTelemetry, instrument
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("opentelemetry"):
        raise
    raise ModuleNotFoundError(
        f"stategraph.otel needs OpenTelemetry's API: {install_command('otel')}"
    ) from error

__all__ = ["OpenTelemetry", "instrument"]
