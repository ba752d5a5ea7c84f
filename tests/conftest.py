"""Set-up for every test: warnings are errors (pyproject.toml), log lines stay quiet."""

import logging

import structlog

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
