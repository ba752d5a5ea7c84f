"""Migrations of the tables of reports, in a sequence separate from the registry's."""
