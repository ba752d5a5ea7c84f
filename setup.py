"""The layout of the wheel, for which pyproject.toml has no words.

The wheel has one package, `escrowmq`; the packages of this repository are in its `_service`
(docs/decisions/0028). The migrations, which are in `alembic/` as alembic's users expect, are there
too: they cannot be a package, since its name is that of the library.

An editable install has the repository itself on the path.
"""

import shutil
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

SERVICE = ("app", "audit", "cli", "console", "delivery", "scheduler", "storage", "txn")
WITHIN = "escrowmq._service"


class BuildWithMigrations(build_py):
    def run(self) -> None:
        if self.editable_mode:
            return
        # What an earlier build has left would go into the wheel.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        target = Path(self.build_lib, *WITHIN.split("."), "app", "registry", "migrations")
        shutil.copytree("alembic", target, ignore=shutil.ignore_patterns("__pycache__"))


def folders() -> dict[str, str]:
    """The folder of each package of the wheel.

    `escrowmq_client` among them is the service's own copy, by which it signs webhooks: the service
    needs no other distribution, and no project can import it from here.
    """
    service = find_packages(include=[f"{name}{part}" for name in SERVICE for part in ("", ".*")])
    found = {f"{WITHIN}.{name}": name.replace(".", "/") for name in service}
    for name in find_packages("client", include=["escrowmq_client*"]):
        found[f"{WITHIN}.{name}"] = f"client/{name.replace('.', '/')}"
    return {"escrowmq": "escrowmq", **found}


if "editable_wheel" in sys.argv:  # the command by which pip has setuptools make an editable install
    packages = {"packages": ["escrowmq", *SERVICE], "package_dir": {"": "."}}
else:
    packages = {"packages": [*folders()], "package_dir": folders()}

setup(
    cmdclass={"build_py": BuildWithMigrations},
    package_data={
        f"{WITHIN}.app": ["examples.json", "problems.toml"],
        f"{WITHIN}.console": ["static/**"],
        f"{WITHIN}.escrowmq_client": ["py.typed"],
    },
    **packages,
)
