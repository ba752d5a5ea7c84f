"""`/v1/dev`: the controls over HTTP, for tests in any language.

Not in the OpenAPI document: no client has them.
"""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from msgspec import UNSET, Meta, UnsetType

from app.encoding import codec
from app.http.access import Access
from app.http.exchange import ACCESS
from app.operations import OPERATIONS
from app.problems import invalid_field
from app.testing.controls import Controls
from app.testing.faults import Fault


def _check_access(request: Request) -> None:
    """Raise Refusal forbidden unless the key may do everything."""
    access: Access = request.scope[ACCESS]
    access.check_scope(["admin"])
    access.check_unlimited()


router = APIRouter(prefix="/v1/dev", include_in_schema=False, dependencies=[Depends(_check_access)])

_LONGEST_MS = 366 * 86_400_000
_SLOW_CHECK = "slow_check"


class AdvanceInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How far the clock is moved."""

    by_ms: Annotated[int, Meta(ge=0, le=_LONGEST_MS)]


class ClockView(msgspec.Struct, kw_only=True):
    """`ahead_ms`: of the system's clock; a start with ESCROWMQ_TESTING__CLOCK_AHEAD_MS goes on
    there.
    """

    now: str
    ahead_ms: int


class FaultInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A fault to switch on; `slow_check` has `ms`, 0 for no longer; the others have an operation
    and how often they strike.
    """

    fault: str
    operation: Annotated[str, Meta(description="An operationId.")] | UnsetType = UNSET
    times: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    ms: Annotated[int, Meta(ge=0, le=_LONGEST_MS)] | UnsetType = UNSET


class ArmedFault(msgspec.Struct, kw_only=True):
    """`left`: how many requests it still strikes."""

    fault: str
    operation: str
    left: int


class FaultsView(msgspec.Struct, kw_only=True):
    """`struck`: how many requests have been, since the start."""

    items: list[ArmedFault]
    slow_check_ms: int
    struck: int


_advance_decoder = msgspec.json.Decoder(AdvanceInput)
_fault_decoder = msgspec.json.Decoder(FaultInput)


@router.get("/clock")
async def get_clock(request: Request) -> Response:
    """The time here."""
    return _clock(_controls(request))


@router.post("/clock/advance")
async def advance(request: Request) -> Response:
    """Move the clock ahead; answered when everything that fell due has been done."""
    given = codec.decode(_advance_decoder, await request.body())
    controls = _controls(request)
    await controls.advance(given.by_ms)
    return _clock(controls)


@router.get("/faults")
async def get_faults(request: Request) -> Response:
    """Report the active fault and the number of affected requests."""
    return _faults(_controls(request))


@router.post("/faults")
async def switch_on(request: Request) -> Response:
    """Switch a fault on."""
    given = codec.decode(_fault_decoder, await request.body() or b"{}")
    faults = _controls(request).faults
    if given.fault == _SLOW_CHECK:
        _refuse(given, "operation", "times")
        if given.ms is UNSET:
            raise invalid_field("/ms", "missing", "slow_check needs ms")
        faults.slow_check_ms = given.ms
        return _faults(_controls(request))
    _refuse(given, "ms")
    if given.fault not in list(Fault):
        known = ", ".join([*Fault, _SLOW_CHECK])
        raise invalid_field("/fault", "not_allowed", f"a fault is one of {known}")
    if given.operation is UNSET or given.operation not in OPERATIONS:
        raise invalid_field(
            "/operation", "not_allowed", "must be an operationId of the OpenAPI document"
        )
    faults.arm(given.operation, Fault(given.fault), 1 if given.times is UNSET else given.times)
    return _faults(_controls(request))


@router.delete("/faults")
async def switch_off(request: Request) -> Response:
    """Switch all faults off."""
    controls = _controls(request)
    controls.faults.clear()
    return _faults(controls)


def _controls(request: Request) -> Controls:
    """Raises Refusal: nothing here takes a query."""
    if request.query_params:
        raise invalid_field("/query", "unknown_field", "the controls take no query parameters")
    controls: Controls = request.app.state.controls
    return controls


def _refuse(given: FaultInput, *names: str) -> None:
    for name in names:
        if getattr(given, name) is not UNSET:
            raise invalid_field(f"/{name}", "not_allowed", f"{given.fault[:100]} has no {name}")


def _clock(controls: Controls) -> Response:
    clock = controls.clock
    return _json(ClockView(now=codec.rfc3339(clock.wall_ms()), ahead_ms=clock.ahead_ms))


def _faults(controls: Controls) -> Response:
    faults = controls.faults
    items = [
        ArmedFault(fault=fault.value, operation=name, left=left)
        for (name, fault), left in faults.armed.items()
    ]
    return _json(FaultsView(items=items, slow_check_ms=faults.slow_check_ms, struck=faults.struck))


def _json(body: msgspec.Struct) -> Response:
    return Response(codec.encode(body), media_type="application/json")
