"""What pyproject.toml has no word for: the migrations lie in `alembic/`, as alembic's users expect,
and go into the wheel too.

They cannot be a package there: its name is that of the library.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithMigrations(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "app", "registry", "migrations")
            shutil.copytree(
                "alembic", target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )


setup(cmdclass={"build_py": BuildWithMigrations})
