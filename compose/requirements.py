"""Prints what pyproject.toml requires for the extras named: dependencies without the project.

So that an image installs them in a layer of their own, which a change of code leaves alone.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """The requirements of the project and of its extras, sorted; KeyError for an unknown extra."""
    project = tomllib.loads(pyproject.read_text())["project"]
    optional = project["optional-dependencies"]
    return sorted(
        {line for extra in extras for line in optional[extra]} | {*project["dependencies"]}
    )


if __name__ == "__main__":
    sys.stdout.writelines(
        f"{line}\n" for line in requirements(Path("pyproject.toml"), sys.argv[1:])
    )
