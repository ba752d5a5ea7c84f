"""Campaigns: power cuts, kills, failing disks.

`make test-faults` runs them; docs/durability.md says what each proves.
"""
