"""Checks by webhook, put together from the operator's options: which hosts are listed, and the courier that goes there."""

from app.problems import FieldError, Refusal
from app.webhooks.options import WebhookOptions
from app.webhooks.transport import AddressRefused, Courier
from app.webhooks.urls import UrlRefused, normal_host, parse_url

_LOOKUP_TIMEOUT_MS = 2_000


class Webhooks:
    """The event loop's."""

    def __init__(self, options: WebhookOptions, *, courier: Courier | None = None) -> None:
        self.options = options
        self._allowed = frozenset(map(normal_host, options.allowed_hosts))
        self._courier = courier or Courier(self._allowed)

    async def check_url(self, text: str) -> None:
        """Raises Refusal check_url_refused. A name that has no address today is taken: it is looked up again at each check."""
        try:
            await self._courier.check(parse_url(text, self._allowed), timeout_ms=_LOOKUP_TIMEOUT_MS)
        except (UrlRefused, AddressRefused) as error:
            detail = f"a check may not be sent there: {error}"
            raise Refusal("check_url_refused", detail, errors=[FieldError("/check_url", "not_allowed", detail)]) from None

    async def aclose(self) -> None:
        await self._courier.aclose()
