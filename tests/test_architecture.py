"""The rules of docs/architecture.md that a reader of one file cannot see broken."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import hydra
import pytest
import yaml
from omegaconf import DictConfig

ROOT = Path(__file__).resolve().parents[1]

# What each folder may import from the project. Imports point one way: experiments -> models, selector -> kernels.
MAY_IMPORT = {
    "kernels": set(),
    "models": {"kernels"},
    "selector": {"kernels"},
    "conf": set(),
    "experiments": {"kernels", "models", "selector", "conf"},
}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    """``kernels/sparse/csr.py`` is ``braidwork.kernels.sparse.csr``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("braidwork", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Every absolute module name that ``tree`` imports; relative ones are resolved against ``package``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: -(node.level - 1) or None] if node.level else []
            target = ".".join((*base, *filter(None, [node.module])))
            yield target
            yield from (f"{target}.{alias.name}" for alias in node.names)


def package_of(path: Path) -> str:
    name = module_name(path)
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


@functools.cache
def all_modules() -> tuple[types.ModuleType, ...]:
    """Every module below the four roots, imported. One that runs on import would show here."""
    names = []
    for root in MAY_IMPORT:
        package = importlib.import_module(f"braidwork.{root}")
        names += [package.__name__]
        names += [info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return tuple(importlib.import_module(name) for name in names)


def is_ours(name: str) -> bool:
    return name.partition(".")[0] == "braidwork"


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_point_one_way(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(folder)
        for name in imports(ast.parse(path.read_text()), package_of(path))
        if is_ours(name) and "." in name and name.split(".")[1] not in MAY_IMPORT[folder] | {folder}
    ]
    assert not wrong


def test_imports_are_relative_within_a_folder_and_absolute_across() -> None:
    wrong = []
    for path in sources(*MAY_IMPORT):
        folder, depth = path.relative_to(ROOT).parts[0], len(path.relative_to(ROOT).parts) - 1
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            if node.level > depth:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} climbs out of {folder}")
            elif f"{node.module}.".startswith(f"braidwork.{folder}.") and not node.level:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} names its own folder")
    assert not wrong


def test_bare_folder_names_are_never_imported() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(*MAY_IMPORT, "tests")
        for name in imports(ast.parse(path.read_text()), package_of(path))
        if name.partition(".")[0] in MAY_IMPORT
    ]
    assert not wrong


def test_no_file_is_loaded_under_two_names() -> None:
    loaded: dict[str, set[str]] = {}
    all_modules()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name != "__main__" and Path(file).resolve().is_relative_to(ROOT / "kernels"):
            loaded.setdefault(str(Path(file).resolve()), set()).add(name)
    assert loaded and {file: names for file, names in loaded.items() if len(names) > 1} == {}


def test_the_cpu_backend_is_not_an_entry_point() -> None:
    """``import triton`` elsewhere in an environment must not find it: braidwork.kernels registers it."""
    assert not list(importlib.metadata.distribution("braidwork").entry_points)
    assert "entry-points" not in (ROOT / "pyproject.toml").read_text()


def test_plain_triton_is_untouched() -> None:
    code = (
        "import sys, triton.backends\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'braidwork']\n"
        "print(*triton.backends.backends)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "nvidia" in run.stdout and "cpu" not in run.stdout


# -- public names --------------------------------------------------------------------------------------------


def public() -> list[tuple[types.ModuleType, str]]:
    return [(module, name) for module in all_modules() for name in getattr(module, "__all__", ())]


def test_every_public_name_resolves_and_is_documented() -> None:
    wrong = []
    for module, name in public():
        value = getattr(module, name, None)
        if value is None:
            wrong.append(f"{module.__name__}.{name} does not exist")
        elif (inspect.isroutine(value) or inspect.isclass(value)) and not value.__doc__:
            wrong.append(f"{module.__name__}.{name} has no docstring")
    assert public() and not wrong


@pytest.mark.parametrize("package", ["kernels", "kernels.sparse", "models"])
def test_packages_declare_their_public_names(package: str) -> None:
    module = importlib.import_module(f"braidwork.{package}")
    assert module.__doc__ and module.__all__


def is_kernel(function: ast.FunctionDef) -> bool:
    """Whether it is Triton's: arguments of a kernel are typed at each launch, not in Python."""
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_public_functions_are_typed() -> None:
    bare = []
    for path in sources(*MAY_IMPORT):
        tree = ast.parse(path.read_text())
        bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
        for node in (node for body in bodies for node in body):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or is_kernel(node):
                continue
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            untyped = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls", "ctx")]
            if untyped or node.returns is None:
                bare.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}({', '.join(untyped)})")
    assert not bare


# -- the tree ------------------------------------------------------------------------------------------------


def tracked() -> list[Path]:
    try:
        run = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        names = run.stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive, or no git
        found = (path for folder in (*MAY_IMPORT, "tests", "docs") for path in (ROOT / folder).rglob("*"))
        names = [str(path) for path in found if "__pycache__" not in path.parts]
    return [path for name in names if name and (path := ROOT / name).is_file()]


def test_no_tracked_file_names_a_place_on_one_machine() -> None:
    places = re.compile(r"(?<![\w.~])/(?:home|Users|work|root|mnt|scratch|tmp/[a-z])/?\w*|\.\./shared")
    wrong = []
    for path in tracked():
        if path.suffix in {".npz", ".png", ".gz", ".parquet"} or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if place := places.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number} {place.group()}")
    assert not wrong


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in tracked() if path.suffix == ".py"}
    assert {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > 500} == {}


# -- settings ------------------------------------------------------------------------------------------------


def compose(*overrides: str) -> DictConfig:
    with hydra.initialize_config_module("braidwork.conf", version_base=None):
        return hydra.compose("train", overrides=list(overrides))


@pytest.mark.parametrize("group", ["dataset", "model"])
def test_every_choice_of_a_group_composes(group: str) -> None:
    """Each file is a whole choice: it names itself, so that a record can say what ran."""
    choices = sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))
    assert choices
    for choice in choices:
        assert compose(f"{group}={choice}")[group].name, choice


def test_every_experiment_composes() -> None:
    for path in (ROOT / "conf" / "experiment").glob("*.yaml"):
        assert compose(f"+experiment={path.stem}"), path


def test_every_setting_is_yaml() -> None:
    files = sorted((ROOT / "conf").rglob("*.yaml"))
    assert files
    for path in files:
        assert isinstance(yaml.safe_load(path.read_text()), dict | None), path
