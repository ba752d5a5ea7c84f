"""docs/settings.md against the settings that there are: none is missing, none is made up, each
default and unit is true.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.settings import CONFIG_FILE, Settings, effective, load, variable_names
from tests.house.source import ROOT

PAGE = (ROOT / "docs" / "settings.md").read_text("utf-8")
UNITS = {
    "_MS": "ms",
    "_BYTES": "bytes",
    "_PAGES": "pages",
    "_ENTRIES": "entries",
    "_FILES": "files",
}


class Row(NamedTuple):
    default: str
    unit: str
    sentence: str


def documented() -> dict[str, Row]:
    found = {}
    for line in PAGE.splitlines():
        if line.startswith("| `ESCROWMQ_"):
            name, default, unit, sentence = (
                cell.strip().strip("`") for cell in line.strip("|").split("|")
            )
            assert name not in found, f"{name} is documented twice"
            found[name] = Row(default, unit, sentence)
    return found


def defaults(section: Any, prefix: str = "ESCROWMQ_") -> Iterator[tuple[str, str]]:
    """Each variable with its default, as it would be written in the environment."""
    names = (
        Settings.model_fields
        if isinstance(section, Settings)
        else [field.name for field in fields(section)]
    )
    for name in names:
        value = getattr(section, name)
        if is_dataclass(value):
            yield from defaults(value, f"{prefix}{name.upper()}__")
        else:
            yield f"{prefix}{name.upper()}", written(value)


def written(value: Any) -> str:
    if isinstance(value, bool | tuple):
        return json.dumps(value)
    return str(value.value if isinstance(value, Enum) else value)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in (*variable_names(), CONFIG_FILE):
        monkeypatch.delenv(name, raising=False)


def test_every_setting_is_documented_and_nothing_else():
    assert sorted(documented()) == sorted(variable_names())


def test_every_documented_default_is_the_one_in_force():
    assert {name: row.default for name, row in documented().items()} == dict(defaults(Settings()))


def test_what_is_in_force_is_told_of_every_setting_and_of_a_secret_only_that_there_is_one():
    secrets = {
        "ESCROWMQ_API_KEYS": "",
        "ESCROWMQ_SCOPED_KEYS": "",
        "ESCROWMQ_DATABASE_URL": "",
        "ESCROWMQ_WEBHOOK__ENCRYPTION_KEYS": "",
    }

    assert effective(Settings()) == dict(defaults(Settings())) | secrets

    told = effective(
        Settings(api_keys=("a-key",), database_url="postgresql://user:a-password@host/db")
    )
    assert (told["ESCROWMQ_API_KEYS"], told["ESCROWMQ_DATABASE_URL"]) == ("(set)", "(set)")


def test_the_unit_of_a_setting_is_the_one_in_its_name_and_every_number_has_one():
    for name, row in documented().items():
        suffix = name[name.rindex("_") :]
        assert row.unit == UNITS.get(suffix, row.unit), name
        is_count = row.default.isdigit() and name != "ESCROWMQ_PORT"
        assert bool(row.unit) == is_count, name


def test_every_setting_is_explained_in_a_sentence():
    for name, row in documented().items():
        assert re.search(r"\w{3}", row.sentence), name
        assert row.sentence.endswith("."), name


def test_every_documented_variable_is_read_under_its_name(monkeypatch):
    """A misspelt one would be refused; its default, said aloud, changes nothing."""
    for name, row in documented().items():
        monkeypatch.setenv(name, row.default)

    assert load() == Settings()


def test_the_settings_file_of_the_page_is_taken(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = Path(tmp_path / "escrowmq.toml")
    path.write_text(example, "utf-8")

    settings = load(path)

    assert (settings.port, len(settings.api_keys), settings.local.flush_interval_ms) == (
        9090,
        2,
        100,
    )
    assert CONFIG_FILE in PAGE


def test_a_settings_file_holds_for_the_settings_that_are_read_from_it_and_no_others(tmp_path):
    path = tmp_path / "escrowmq.toml"
    path.write_text("port = 9090", "utf-8")

    assert load(path).port == 9090

    assert load().port == Settings().port == 8080
    assert CONFIG_FILE not in os.environ
