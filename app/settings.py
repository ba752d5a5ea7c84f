"""Settings of the service: environment, a TOML file, the command line. Read once, and passed on.

Every option lives in a dataclass beside the thing it configures; here they only get their names:
`ESCROWMQ_LOCAL__SEGMENT_BYTES` reaches `LocalStoreOptions.segment_bytes`. The command line wins
over the environment, the environment over the file.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from app.encoding import codec
from app.environment import from_json
from app.http.access import EVERYTHING, Access, KeyOptions
from app.http.browsers import BrowserRules
from app.http.loopback import is_loopback
from app.names.options import NameOptions
from app.registry.options import LimitOptions
from app.replicas.options import ReplicaOptions, WhenMissing
from app.reports.options import AuditOptions
from app.testing.options import ControlOptions
from app.webhooks.options import WebhookOptions
from delivery.options import DeliveryOptions, MemberOptions, RequestOptions
from scheduler.options import ScheduleOptions
from storage.local.options import LocalStoreOptions
from txn.options import TransactionOptions

if TYPE_CHECKING:  # SQLAlchemy takes a while to import, and most commands need none of it
    from sqlalchemy.engine import URL

PREFIX = "ESCROWMQ_"
CONFIG_FILE = f"{PREFIX}CONFIG"
OWN_FILE = "escrowmq.toml"  # in the data directory
# Variables of programs beside the service, no settings: what pytest_escrowmq starts, and where
# clients find a service. ESCROWMQ_API_KEY stays refused, as it may be meant for API_KEYS.
_OF_OTHERS = (f"{PREFIX}EXECUTABLE", f"{PREFIX}URL")
MOST_CONNECTIONS = 4_096  # unless the settings say more
# The file that settings are being read from: pydantic makes the sources, and hands nothing to them.
_file: ContextVar[Path | None] = ContextVar("settings_file", default=None)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# a database's URL has a password in it
_SECRET = ("api_key", "api_keys", "scoped_keys", "encryption_keys", "database_url", "secret")


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """Settings of the HTTP server."""

    max_body_bytes: int = 16 << 20
    max_body_values: int = codec.MAX_VALUES  # of JSON; each list and object counts as one more
    # of all bodies under way together, decompressed, and of answers with messages
    max_bodies_bytes: int = 256 << 20
    max_gzip_ratio: int = 100  # of what a body is when decompressed to what it is when compressed
    # request line and headers; 16 KiB of properties take 48 KiB where each byte is escaped
    max_head_bytes: int = 128 << 10
    max_connections: int = 0  # 0: as many as the limit of open files leaves, up to MOST_CONNECTIONS
    head_timeout_ms: int = 5_000  # from the first byte of a request to the end of its headers
    body_timeout_ms: int = 30_000  # from there to the end of its body
    # a stream in which nothing comes for so long is closed; it has no other end
    stream_idle_ms: int = 60_000
    # in a stream of events a comment comes after so long without one, so that no proxy closes it
    keep_alive_ms: int = 15_000
    # a client that is behind with its answers, and takes less than it has to within so long, is cut
    # off
    unread_timeout_ms: int = 30_000
    # of what a client reads or sends while it holds memory by that
    least_bytes_per_second: int = 8 << 10
    max_waiting: int = 0  # long polls at once; 0: seven of eight connections
    stop_timeout_ms: int = 8_000  # for requests in progress, once the service is asked to stop
    # Names, with or without a port, beside the loopback ones; used where there are no API keys.
    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(from_json)] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("max_connections", "max_waiting") else 1
            if isinstance(value, int) and value < least:
                raise ValueError(f"{field.name} must be at least {least}, got {value}")
        BrowserRules(self.allowed_hosts)  # raises ValueError

    @property
    def least_read_bytes(self) -> int:
        """Bytes of its answers that a client has to read in each `unread_timeout_ms`."""
        return max(1, self.least_bytes_per_second * self.unread_timeout_ms // 1_000)

    @property
    def least_entry_bytes(self) -> int:
        """Bytes of an entry of a stream that a client has to send in each `stream_idle_ms`."""
        return max(1, self.least_bytes_per_second * self.stream_idle_ms // 1_000)

    @property
    def connection_limit(self) -> int:
        return self.max_connections or MOST_CONNECTIONS

    @property
    def waiting_limit(self) -> int:
        return self.max_waiting or waiting_below(self.connection_limit)


def waiting_below(connections: int) -> int:
    """Number of long polls that so many connections may hold, so that other requests find
    one, too.
    """
    return max(1, connections - max(1, connections // 8))


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _not_empty(path: Any) -> Any:
    """A path; an empty one would be the current directory, one of blanks a folder in it."""
    if isinstance(path, str) and not path.strip():
        raise ValueError("an empty path; the current directory is: .")
    return path


class ConfigurationError(Exception):
    """The service cannot start with these settings."""


class Settings(BaseSettings):
    """Everything that can be set. An unknown name is an error, not a silent default."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    data_dir: Annotated[Path, BeforeValidator(_not_empty)] = Path("data")
    dev: bool = False
    api_keys: tuple[SecretStr, ...] = ()  # that may do everything
    scoped_keys: tuple[KeyOptions, ...] = ()
    database_url: str = ""  # empty: SQLite in the data directory
    # start with a registry that is not the one the store was used with
    accept_registry: bool = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_lower)
    ] = "info"
    log_format: Literal["", "json", "console"] = ""  # empty: console with dev, else json
    log_rates: bool = True  # a line each minute in which there was work
    http: HttpOptions = HttpOptions()
    local: LocalStoreOptions = LocalStoreOptions()
    limit: LimitOptions = LimitOptions()
    txn: TransactionOptions = TransactionOptions()
    schedule: ScheduleOptions = ScheduleOptions()
    delivery: DeliveryOptions = DeliveryOptions()
    request: RequestOptions = RequestOptions()
    member: MemberOptions = MemberOptions()
    webhook: WebhookOptions = WebhookOptions()
    audit: AuditOptions = AuditOptions()
    replica: ReplicaOptions = ReplicaOptions()
    names: NameOptions = NameOptions()
    testing: ControlOptions = ControlOptions()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls, _file.get()),
        )

    @property
    def store_dir(self) -> Path:
        return self.data_dir / "store"

    @property
    def registry_url(self) -> "URL":
        from sqlalchemy.engine import URL, make_url

        if self.database_url:
            return make_url(self.database_url)
        # in parts, as a path may have characters that mean something in the text of a URL
        return URL.create("sqlite", database=str(self.data_dir / "registry.db"))

    @property
    def is_registry_shared(self) -> bool:
        """Do all machines have one registry?"""
        return self.database_url.startswith("postgresql")

    @property
    def is_loopback(self) -> bool:
        """Does the service listen on the loopback interface only?"""
        return is_loopback(self.host)

    @property
    def keys(self) -> list[tuple[str, Access]]:
        """Every API key, with what it may do."""
        return [
            *((key.get_secret_value(), EVERYTHING) for key in self.api_keys),
            *((one.key.get_secret_value(), one.access) for one in self.scoped_keys),
        ]

    def masked(self) -> dict[str, Any]:
        """The settings for the log: secrets hidden, and a database's password with them."""
        values = self.model_dump(mode="json")
        values["api_keys"] = len(self.api_keys)
        values["scoped_keys"] = [one.name for one in self.scoped_keys]
        values["database_url"] = "(set)" if self.database_url else ""
        return values


def effective(settings: Settings) -> dict[str, str]:
    """Effective value of each variable, as text. Of a secret only that it is set."""
    return dict(_effective(settings, PREFIX))


def _effective(section: Any, prefix: str) -> Iterator[tuple[str, str]]:
    named = (
        Settings.model_fields
        if isinstance(section, Settings)
        else [field.name for field in fields(section)]
    )
    for name in named:
        value, variable = getattr(section, name), f"{prefix}{name}".upper()
        if is_dataclass(value):
            yield from _effective(value, f"{variable}__")
        elif name in _SECRET:
            yield variable, "(set)" if value else ""
        elif isinstance(value, bool | tuple):
            yield variable, json.dumps(value)
        else:
            yield variable, str(value.value if isinstance(value, Enum) else value)


def load(config_file: Path | None = None, **given: Any) -> Settings:
    """The effective settings; `given` comes from the command line and wins.

    Raises ConfigurationError.
    """
    _refuse_unknown(os.environ)
    named = os.environ.get(CONFIG_FILE)
    config = config_file or (None if named is None else Path(named))
    if config is not None and not config.is_file():
        raise ConfigurationError(f"the settings file {config} does not exist")
    settings = _read_valid(config, {name: one for name, one in given.items() if one is not None})
    _check_together(settings)
    return settings


def _read_valid(config: Path | None, given: Mapping[str, Any]) -> Settings:
    """The settings, each of them valid by itself. Raises ConfigurationError."""
    try:
        return _read(config, given)
    except ValidationError as error:
        raise ConfigurationError(
            "; ".join(map(_sentence, error.errors(include_url=False, include_input=False)))
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"the settings file {config} is not TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"the settings file {config} is not UTF-8: {error.reason} at byte {error.start}"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"the settings file {config} cannot be read: {error.strerror}"
        ) from None
    except SettingsError:
        name = next(
            (name for name in _json_variables() if not _is_json(os.environ.get(name, "null"))),
            PREFIX,
        )
        raise ConfigurationError(f"{name} is not JSON") from None


def _check_together(settings: Settings) -> None:
    """Raise ConfigurationError for settings that exclude each other."""
    if not settings.is_loopback and not settings.keys:
        raise ConfigurationError(
            f"host {settings.host} can be reached from outside, so {PREFIX}API_KEYS must hold at "
            "least one key"
        )  # fmt: skip
    _check_keys(settings)
    if settings.replica.ha_host and settings.keys and not settings.replica.secret_text:
        raise ConfigurationError(
            f"{PREFIX}REPLICA__HA_HOST serves the whole log, so with API keys "
            f"{PREFIX}REPLICA__SECRET must be set, too"
        )
    if settings.testing.enabled and not settings.is_loopback:
        raise ConfigurationError(
            f"{PREFIX}TESTING__ENABLED is for loopback only: host {settings.host} can be reached "
            "from outside"
        )
    if settings.database_url:
        _refuse_unknown_database(settings.database_url)
    if settings.replica.when_missing is WhenMissing.DEGRADE and not settings.is_registry_shared:
        raise ConfigurationError(
            f"{PREFIX}REPLICA__WHEN_MISSING is degrade, so {PREFIX}DATABASE_URL must be one of "
            "PostgreSQL: all machines read there whether the service is alone"
        )


def _read(config: Path | None, given: Mapping[str, Any]) -> Settings:
    token = _file.set(config)
    try:
        return Settings(**given)
    finally:
        _file.reset(token)


def settings_file_of(data_dir: Path | None) -> Path | None:
    """The settings file in the data directory; None where there is none, or another one is named by
    the environment. `data_dir`: from the command line.
    """
    if CONFIG_FILE in os.environ:
        return None
    default = Settings.model_fields["data_dir"].default
    named = data_dir or os.environ.get(f"{PREFIX}DATA_DIR") or default
    file = Path(named) / OWN_FILE
    return file if os.path.isfile(file) else None


def _check_keys(settings: Settings) -> None:
    """Raises ConfigurationError where a key cannot be used, or could be taken for another one."""
    for number, secret in enumerate(settings.api_keys, 1):
        _check_key(secret.get_secret_value(), f"{PREFIX}API_KEYS: key {number}")
    for one in settings.scoped_keys:
        _check_key(one.key.get_secret_value(), f"{PREFIX}SCOPED_KEYS: the key of {one.name}")
    if len({one.name for one in settings.scoped_keys}) < len(settings.scoped_keys):
        raise ConfigurationError(f"{PREFIX}SCOPED_KEYS: two keys have one name")
    scoped = [one.key.get_secret_value() for one in settings.scoped_keys]
    full = [key.get_secret_value() for key in settings.api_keys]
    if len({*scoped, *full}) < len(scoped) + len(set(full)):
        raise ConfigurationError(
            f"{PREFIX}SCOPED_KEYS: a key is there twice, or in {PREFIX}API_KEYS as well"
        )


def _check_key(key: str, which: str) -> None:
    """Raises ConfigurationError where no header would ever match the key."""
    if not key:
        raise ConfigurationError(f"{which} is empty")
    if key != key.strip():
        raise ConfigurationError(f"{which} begins or ends with a blank, which no header keeps")
    if _CONTROL.search(key):
        raise ConfigurationError(f"{which} holds a control character, which no header carries")


def variable_names(kind: Any = Settings, prefix: str = PREFIX) -> Iterator[str]:
    """Every environment variable that sets one value."""
    named = kind.model_fields if kind is Settings else {field.name: field for field in fields(kind)}
    for name, field in named.items():
        value = field.default
        if is_dataclass(value):
            yield from variable_names(type(value), f"{prefix}{name}__".upper())
        else:
            yield f"{prefix}{name}".upper()


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    """A misspelt name at the top level would be ignored, and its default would hold unnoticed."""
    known = {
        *variable_names(),
        CONFIG_FILE,
        *(f"{PREFIX}{name}".upper() for name in Settings.model_fields),
    }
    for name in sorted(environment):
        if name.upper().startswith(PREFIX) and name.upper() not in {*known, *_OF_OTHERS}:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            raise ConfigurationError(
                f"unknown setting {name}" + (f"; did you mean {near[0]}?" if near else "")
            )


def _refuse_unknown_database(url: str) -> None:
    """Before anything is opened. The URL may hold a password, so it is not said again."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    name = f"{PREFIX}DATABASE_URL"
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise ArgumentError
        parsed.get_dialect().import_dbapi()
    except (ArgumentError, ValueError):  # of a port that is no number
        raise ConfigurationError(f"{name} is no URL of a SQLite or PostgreSQL database") from None
    except ModuleNotFoundError as error:
        hint = (
            "; the extra `postgresql` of escrowmq installs psycopg"
            if error.name == "psycopg"
            else ""
        )
        raise ConfigurationError(
            f"{name} needs the driver {error.name}, which is not installed{hint}"
        ) from None
    if parsed.get_backend_name() == "sqlite" and not _is_path(parsed.database):
        raise ConfigurationError(
            f"{name} must give SQLite the path of a file, as sqlite:////var/lib/registry.db does"
        )


def _is_path(database: str | None) -> bool:
    """A database in memory is gone at a stop. SQLite's own URIs can be one, or read-only."""
    return not (database or ":memory:").startswith((":memory:", "file:"))


def _sentence(error: Any) -> str:
    """One line for one wrong setting, by the name that the environment has for it.

    Its value may be a secret.
    """
    place = [str(step) for step in error["loc"]]
    reason = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        if any(isinstance(step, int) for step in error["loc"]):
            return f"{_place(error['loc'])}: there is no such field"
        known = list(variable_names())
        near = difflib.get_close_matches(_variable(place), known, n=1)
        return f"unknown setting {'.'.join(place)}" + (f"; did you mean {near[0]}?" if near else "")
    return f"{_place(error['loc'])}: {reason}"


def _place(steps: Sequence[str | int]) -> str:
    """The variable; and within a list which item, from 1, and which field of it."""
    at = next((at for at, step in enumerate(steps) if isinstance(step, int)), len(steps))
    variable = _variable([str(step) for step in steps[:at]])
    inner = [f"item {step + 1}" if isinstance(step, int) else step for step in steps[at:]]
    return ", ".join([variable, *inner])


def _variable(place: Sequence[str]) -> str:
    return PREFIX + "__".join(place).upper()


def _json_variables() -> list[str]:
    """Variables whose text pydantic-settings reads as JSON: a list at the top level, and whole
    sections.
    """
    sections = [
        f"{PREFIX}{name}".upper()
        for name, field in Settings.model_fields.items()
        if is_dataclass(field.default)
    ]
    return [f"{PREFIX}API_KEYS", f"{PREFIX}SCOPED_KEYS", *sections]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
