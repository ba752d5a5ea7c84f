"""What the process says when it ends, beside 0: sysexits.h, where it has a fitting one."""

DATA_DAMAGED = 65
NO_ADDRESS = 69
BUG = 70
DIRECTORY_IN_USE = 73
STORAGE_FAILED = 74
NO_REGISTRY = 75
CONFIGURATION = 78
