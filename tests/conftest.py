"""Set-up for every test: warnings are errors (pyproject.toml), log lines stay quiet."""

import structlog

structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
