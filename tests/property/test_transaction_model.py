"""Any sequence of begins, decisions, checks, clock jumps and crashes does to a transaction what a
plain model says.
"""

from tests.fault.transaction_machine import TransactionMachine
from tests.support.model import model_test

TestTransactionModel = model_test(TransactionMachine, examples=60)
