"""What the operator set: environment, a TOML file, the command line. Read once, and handed on.

Every option lives in a dataclass beside the thing it configures; here they only get their names:
`ESCROWMQ_LOCAL__SEGMENT_BYTES` reaches `LocalStoreOptions.segment_bytes`. The command line wins over the environment, the
environment over the file.
"""

import difflib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from storage.local.options import LocalStoreOptions
from txn.options import TransactionOptions

PREFIX = "ESCROWMQ_"
CONFIG_FILE = f"{PREFIX}CONFIG"


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """The door."""

    max_body_bytes: int = 16 << 20
    max_connections: int = 4_096
    head_timeout_ms: int = 5_000  # from the first byte of a request to the end of its headers
    body_timeout_ms: int = 30_000  # from there to the end of its body
    max_waiting: int = 10_000  # long polls parked at once
    stop_timeout_ms: int = 8_000  # for requests in progress, once the service is told to stop

    def __post_init__(self) -> None:
        for name in (
            "max_body_bytes",
            "max_connections",
            "head_timeout_ms",
            "body_timeout_ms",
            "max_waiting",
            "stop_timeout_ms",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class ConfigurationError(Exception):
    """The service cannot start with these settings."""


class Settings(BaseSettings):
    """Everything that can be set. An unknown name is an error, not a silent default."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = 8080
    data_dir: Path = Path("data")
    dev: bool = False
    api_keys: tuple[SecretStr, ...] = ()
    database_url: str = ""  # empty: SQLite in the data directory
    log_level: str = "info"
    log_format: str = ""  # "json" or "console"; empty: console with dev, else json
    http: HttpOptions = HttpOptions()
    local: LocalStoreOptions = LocalStoreOptions()
    txn: TransactionOptions = TransactionOptions()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls, os.environ.get(CONFIG_FILE)))

    @property
    def store_dir(self) -> Path:
        return self.data_dir / "store"

    @property
    def registry_url(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'registry.db'}"

    @property
    def is_loopback(self) -> bool:
        """Can nobody but this machine reach the service?"""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def masked(self) -> dict[str, Any]:
        """For the log: secrets hidden, and a database's password with them."""
        values = self.model_dump(mode="json")
        values["api_keys"] = len(self.api_keys)
        values["database_url"] = "(set)" if self.database_url else ""
        return values


def load(config_file: Path | None = None, **given: Any) -> Settings:
    """The effective settings; `given` comes from the command line and wins. Raises ConfigurationError."""
    _refuse_unknown(os.environ)
    if config_file is not None:
        os.environ[CONFIG_FILE] = str(config_file)
    config = os.environ.get(CONFIG_FILE)
    if config is not None and not Path(config).is_file():
        raise ConfigurationError(f"the settings file {config} does not exist")
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if not settings.is_loopback and not settings.api_keys:
        raise ConfigurationError(
            f"host {settings.host} can be reached from outside, so {PREFIX}API_KEYS must hold at least one key"
        )  # fmt: skip
    if any(not key.get_secret_value() for key in settings.api_keys):
        raise ConfigurationError(f"{PREFIX}API_KEYS holds an empty key")
    return settings


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    """A misspelt name at the top level would be ignored, and its default would hold unnoticed."""
    known = {f"{PREFIX}{name}".upper() for name in Settings.model_fields} | {CONFIG_FILE}
    for name in environment:
        top = name.upper().partition("__")[0]
        if top.startswith(PREFIX) and top not in known:
            near = difflib.get_close_matches(top, known, n=1)
            raise ConfigurationError(f"unknown setting {name}" + (f"; did you mean {near[0]}?" if near else ""))
