"""Where traces go, as OpenTelemetry's own variables say. All its others are read by its SDK."""

from urllib.parse import urlsplit

from pydantic_settings import BaseSettings, SettingsConfigDict

TRACES_PATH = "/v1/traces"  # of OTLP over HTTP


class OtelSettings(BaseSettings):
    """`OTEL_*`; none of them can be wrong for Headway."""

    model_config = SettingsConfigDict(env_prefix="OTEL_", env_ignore_empty=True, extra="ignore", frozen=True)

    sdk_disabled: str = ""
    traces_exporter: str = ""
    exporter_otlp_endpoint: str = ""
    exporter_otlp_traces_endpoint: str = ""

    @property
    def traces_url(self) -> str:
        """The address for traces is taken as it is, the one for everything is a base. Empty: nowhere."""
        if self.sdk_disabled.lower() == "true" or self.traces_exporter == "none":
            return ""
        base = self.exporter_otlp_endpoint.rstrip("/")
        return self.exporter_otlp_traces_endpoint or (base and base + TRACES_PATH)


def traces_url(address: str) -> str:
    """What a person says: an address without a path stands for the usual path there. Raises ValueError."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is no address of OTLP over HTTP, such as http://127.0.0.1:4318")
    return address if parts.path.strip("/") else address.rstrip("/") + TRACES_PATH
