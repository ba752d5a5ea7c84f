"""How checks by webhook are set up."""

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, SecretStr

from app.environment import from_json
from app.webhooks.allowed import read_allowed
from storage.option_checks import require_at_least

_FERNET_KEY = re.compile(r"[A-Za-z0-9_-]{43}=")


@dataclass(frozen=True, kw_only=True)
class WebhookOptions:
    """Checks that are sent to the producer."""

    # Hosts, and networks as 10.20.0.0/16, that may be loopback, private, plain http or on any port.
    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(from_json)] = ()
    encryption_keys: Annotated[
        tuple[SecretStr, ...], BeforeValidator(from_json)
    ] = ()  # of secrets at rest; the first one seals
    secret_overlap_ms: int = 86_400_000  # a secret that was replaced signs too for so long
    # checks on their way at once; 0: 256, or a 16th of the files that the process may open
    max_connections: int = 0

    def __post_init__(self) -> None:
        read_allowed(self.allowed_hosts)  # raises ValueError
        for key in self.encryption_keys:
            if not _FERNET_KEY.fullmatch(key.get_secret_value()):
                raise ValueError("each of encryption_keys is the URL-safe base64 of 32 bytes")
        require_at_least(0, self, ("secret_overlap_ms", "max_connections"))
