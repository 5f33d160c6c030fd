"""What the client commands want to know: which running Headway, and as whom."""

from pathlib import Path

import orjson
from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from broker.errors import ConfigError
from broker.settings import PREFIX


class ClientSettings(BaseSettings):
    """Of the commands that talk to a running Headway: which one, and as whom."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True)

    home: Path = Path(".headway")
    url: str | None = None
    api_key: SecretStr | None = None

    def find_url(self) -> str:
        """HEADWAY_URL, else what runs in the home directory. Raises ConfigError if nothing does."""
        if self.url:
            return self.url.rstrip("/")
        try:
            return str(orjson.loads((self.home / "up.json").read_bytes())["api"]["url"])
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError(
                f"no Headway runs in {self.home} (there is no up.json): start it with `headway up`, "
                "or name a running one in HEADWAY_URL, or its folder in HEADWAY_HOME"
            ) from None
