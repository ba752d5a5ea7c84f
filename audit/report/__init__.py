"""Reports: as JSON, as a page, in the terminal; and progress until then."""
