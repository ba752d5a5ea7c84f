"""The answer to acknowledgements, all of which were accepted."""

from app.consume.handlers import all_acknowledged
from app.consume.schemas import SettleResult, SettleResults
from app.encoding import codec
from delivery.leases import receipt_handle


def test_the_json_of_accepted_acknowledgements_is_that_of_their_struct():
    for count in (1, 3):
        handles = receipt_handle.encode([(1, offset) for offset in range(count)], 7)
        results = [SettleResult(receipt_handle=handle, status=200) for handle in handles]

        assert all_acknowledged(handles).encode() == codec.encode(
            SettleResults(accepted=count, rejected=0, results=results)
        )
