"""The project installed as a user installs it: a wheel and an editable install, each in an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings the same parser to older Pythons
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAPPING: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of ``command``, started away from the repository and without its coverage or paths."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "COVERAGE_", "PYTHON"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads, since setuptools writes into the tree it builds from."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    for folder in MAPPING.values():
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", target, source)
    run(*pip, cwd=target)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=["wheel", "editable"])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment in which the project, and nothing else, is installed.

    A path file lends it the packages of this one (torch among them). Python follows a path file only one step, so
    the editable install of the project in this environment, itself a path file, stays behind.
    """
    folder = tmp_path_factory.mktemp(request.param)
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin" / "python"
    lent = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    packages = run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    Path(packages.strip(), "lent.pth").write_text("\n".join(dict.fromkeys(lent)) + "\n")
    what: list[str | Path]
    if request.param == "wheel":
        what = [request.getfixturevalue("wheel")]
    else:
        what = ["-e", request.getfixturevalue("source")]
    pip = (sys.executable, "-m", "pip", "--python", interpreter, "install", "-q", "--no-deps", "--no-index")
    run(*pip, "--no-build-isolation", "--ignore-installed", *what, cwd=folder)
    return interpreter


def test_kernels_import_from_the_installed_copy(python: Path, tmp_path: Path) -> None:
    code = "import braidwork.kernels, braidwork.models; print(braidwork.kernels.__file__)"
    file = Path(run(python, "-c", code, cwd=tmp_path).strip())
    assert ROOT not in file.parents and file.name == "__init__.py"


def test_bare_folder_names_are_not_importable(python: Path, tmp_path: Path) -> None:
    names = sorted(MAPPING.values())
    code = (
        "import braidwork.kernels, importlib.util as u\n"
        f"for name in {names}:\n"
        "    spec = u.find_spec(name)\n"
        "    print(name, spec.origin if spec else None)"
    )
    found = dict(line.split(" ", 1) for line in run(python, "-c", code, cwd=tmp_path).splitlines())
    assert sorted(found) == names
    # Another distribution may own such a name (Hugging Face's `kernels`); ours must not.
    assert {n: o for n, o in found.items() if o.endswith(f"{n}/__init__.py") and Path(o) in ours(python)} == {}


def ours(python: Path) -> set[Path]:
    """The package files of the project, wherever this environment has them."""
    code = (
        "import importlib\n"
        f"for name in {sorted(MAPPING)}: print(importlib.import_module(name).__file__)"
    )
    return {Path(line) for line in run(python, "-c", code, cwd=python.parent).splitlines()}


@pytest.mark.parametrize("module", ["braidwork.experiments.train"])
def test_experiments_find_their_settings(python: Path, tmp_path: Path, module: str) -> None:
    assert "dataset" in run(python, "-m", module, "--help", cwd=tmp_path)


def test_the_wheel_holds_settings_data_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    for name, patterns in PYPROJECT["tool"]["setuptools"]["package-data"].items():
        for file in {file for pattern in patterns for file in (ROOT / MAPPING[name]).glob(pattern)}:
            inside = f"{name.replace('.', '/')}/{file.relative_to(ROOT / MAPPING[name])}"
            assert inside in held
    assert "braidwork/experiments/data/wordnet.npz" in held
    assert any(file.startswith("braidwork/conf/dataset/") for file in held)
    assert any(file.endswith("licenses/LICENSE") for file in held)
    tops = {file.split("/")[0] for file in held}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"braidwork"}


def test_every_file_of_the_mapped_folders_is_in_the_wheel(wheel: Path) -> None:
    """A new folder, or a new kind of file, must be named in pyproject.toml: a wheel holds nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    missing = []
    for name, folder in MAPPING.items():
        for file in (ROOT / folder).rglob("*"):
            inside = f"{name.replace('.', '/')}/{file.relative_to(ROOT / folder)}"
            if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".md" and inside not in held:
                missing.append(inside)
    assert not missing


def test_declared_packages_are_the_folders_with_code() -> None:
    found = {
        ".".join((name, *file.parent.relative_to(ROOT / folder).parts))
        for name, folder in MAPPING.items()
        for file in (ROOT / folder).rglob("__init__.py")
    }
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found


# -- pins ----------------------------------------------------------------------------------------------------


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs)
    return {canonical(name): version for name, version in pairs}


def test_constraints_pin_everything_that_the_project_asks_for() -> None:
    """Followed through the metadata of what is installed, from pyproject.toml and all its extras."""
    packaging = pytest.importorskip("packaging.requirements")
    project = PYPROJECT["project"]
    todo = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    seen: set[str] = set()
    pinned = pins()
    while todo:
        requirement = packaging.Requirement(todo.pop())
        name = canonical(requirement.name)
        wanted = any(
            requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            for extra in ("", *requirement.extras)
        )
        # What a CUDA build of torch brings is pinned by that build.
        if not wanted or name in seen or name.startswith(("nvidia-", "cuda-")):
            continue
        seen.add(name)
        assert name in pinned, f"constraints.txt lacks {name}"
        assert name == "triton" or requirement.specifier.contains(pinned[name], prereleases=True), requirement
        todo += metadata.requires(name) or []
    assert seen >= {"torch", "triton", "llvmlite", "hydra-core", "pytest"}


def test_constraints_name_the_versions_that_were_asked_for() -> None:
    assert pins()["torch"] == "2.13.0"
    assert pins()["triton"] == "3.9.0"
