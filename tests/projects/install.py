"""Install the packages of packages.toml, each within ten minutes; say which are not there."""

import subprocess
import sys
import tomllib
from pathlib import Path

PACKAGES = tomllib.loads(Path(__file__).with_name("packages.toml").read_text())

for name, package in PACKAGES.items():
    if "repository" in package:  # a project to begin from, no package
        folder = str(Path(sys.prefix, name))
        command = ["git", "clone", "--quiet", "--depth", "1", package["repository"], folder]
    else:
        command = [sys.executable, "-m", "pip", "install", "--quiet", package["requirement"]]
    try:
        failed = subprocess.run(command, timeout=600, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        failed = True
    print(f"{name}: {'NOT INSTALLED' if failed else 'installed'}", flush=True)
