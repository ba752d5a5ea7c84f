"""An endpoint for checks in a Django project.

urlpatterns = [path("mq/check", check_view(secrets, markers.outcome))]
"""

import logging
import time
from collections.abc import Callable
from typing import cast

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.views.decorators.csrf import csrf_exempt

from escrowmq_client.check_answers import Answer
from escrowmq_client.check_requests import (
    JSON,
    MOST_BYTES,
    CheckResponse,
    RequestRefused,
    Secrets,
    decided,
    failed,
    read_check,
    too_large,
)
from escrowmq_client.models.checks import CheckQuestion
from escrowmq_client.worker.calling import called

_log = logging.getLogger(__name__)


def check_view(secrets: Secrets, answer: Answer) -> Callable[[HttpRequest], HttpResponse]:
    """A view that verifies a check and answers it. It is exempt from CSRF: the signature counts.

    `secrets`: one, several, or a function that returns them. `answer`: gets the check and returns
    `commit`, `rollback`, `unknown` or a `CheckAnswer`; if it raises, the answer is `unknown` with
    the reason as evidence.
    """

    def view(request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            check = _read(secrets, request)
        except RequestRefused as refused:
            return _response(refused.response)
        try:
            return _response(decided(called(answer, check)))
        except Exception as error:  # noqa: BLE001  the check has to be answered all the same
            _log.warning("%s: answered unknown", check.transaction_id, exc_info=error)
            return _response(failed(error))

    return cast("Callable[[HttpRequest], HttpResponse]", csrf_exempt(view))


def _read(secrets: Secrets, request: HttpRequest) -> CheckQuestion:
    try:
        body = request.body
    except RequestDataTooBig:
        body = None
    if body is None or len(body) > MOST_BYTES:
        raise too_large()
    return read_check(secrets, request.headers, body, now=time.time())


def _response(response: CheckResponse) -> HttpResponse:
    return HttpResponse(response.body, status=response.status, content_type=JSON)
