"""Exit statuses of the process beside 0: those of sysexits.h, where one fits."""

DATA_DAMAGED = 65
NO_ADDRESS = 69
BUG = 70
DIRECTORY_IN_USE = 73
STORAGE_FAILED = 74
NO_REGISTRY = 75
DEPOSED = 76
NO_PERMISSION = 77
CONFIGURATION = 78
