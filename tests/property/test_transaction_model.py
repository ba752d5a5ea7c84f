"""Any sequence of begins, decisions, checks, clock jumps and crashes does to a transaction what a
plain model says.
"""

from hypothesis import HealthCheck, settings

from tests.fault.transaction_machine import TransactionMachine

TestTransactionModel = TransactionMachine.TestCase
TestTransactionModel.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
