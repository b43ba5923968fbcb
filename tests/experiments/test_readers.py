"""Every reader against files written here or shipped, and every fault of a file as one line that says what to do."""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas
import pytest
import scipy.io
import scipy.sparse
import torch

from braidwork.experiments.datasets import DatasetError, Graph, load
from braidwork.experiments.readers import DATA
from braidwork.experiments.settings import settings
from braidwork.models import Coo

SHIPPED = sorted(path.stem for path in DATA.glob("*.npz"))
# A directed triangle with a tail, source -> target; node 4 stands alone.
EDGES = [(0, 1), (1, 2), (2, 0), (2, 3)]
WEIGHTS = [0.5, 2.0, 3.0, 4.0]
NODES = 5


def dataset(*overrides: str) -> dict:
    return settings("train", overrides)["dataset"]


def user_graph(path: Path, **options: object) -> Graph:
    return load(dataset("dataset=user", f"dataset.path='{path}'") | {"undirected": False, **options})


def adjacency(weighted: bool = True) -> np.ndarray:
    """Entry (i, j) is the edge from j to i."""
    matrix = np.zeros((NODES, NODES), np.float32)
    for (source, target), weight in zip(EDGES, WEIGHTS, strict=True):
        matrix[target, source] = weight if weighted else 1
    return matrix


def as_dense(edges: Coo) -> np.ndarray:
    matrix = np.zeros(edges.shape, np.float32)
    matrix[edges.row, edges.col] = 1 if edges.value is None else edges.value
    return matrix


def refusal(config: Mapping) -> str:
    """The message of the DatasetError that loading raises, which must be one line."""
    with pytest.raises(DatasetError) as caught:
        load(config)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


# -- shipped graphs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_graph_is_what_its_file_says(name: str) -> None:
    with np.load(DATA / f"{name}.npz") as z:
        stored, symmetric, nodes = int(z["row_length"].sum()), bool(z["symmetric"]), int(z["shape"][0])
        labels = z["label"] if "label" in z else None
    graph = load(dataset(f"dataset={name}"))
    edges = graph.edges
    assert graph.name == name and edges.shape == (nodes, nodes) and graph.num_nodes == nodes
    assert edges.value is None
    assert not (edges.row == edges.col).any()
    code = edges.row * nodes + edges.col
    assert (code.diff() > 0).all(), "sorted by row, each edge once"
    assert torch.equal((edges.col * nodes + edges.row).sort().values, code), "undirected"
    if symmetric:  # the file holds the upper triangle, and none of these has a self-loop or a double edge
        assert edges.nnz == 2 * stored
    else:
        assert stored <= edges.nnz <= 2 * stored
    assert graph.metadata["source"] and graph.metadata["licence"]
    if labels is not None:
        assert np.array_equal(graph.labels, labels) and graph.num_classes == labels.max() + 1


def test_wordnet_has_the_size_that_its_settings_state() -> None:
    graph = load(dataset("dataset=wordnet"))
    assert (graph.num_nodes, graph.edges.nnz, graph.num_features, graph.num_classes) == (117_659, 367_578, 6_832, 45)
    assert graph.features.value.min() >= 0 and graph.features.value.max() <= 1
    rows = torch.bincount(graph.features.row, graph.features.value.double() ** 2, minlength=graph.num_nodes)
    assert (((rows - 1).abs() < 0.1) | (rows == 0)).all(), "a gloss has length 1, but for its 8 bits, or no known word"


def test_a_graph_without_features_has_node_numbers_for_them() -> None:
    graph = load(dataset("dataset=karate"))
    assert np.array_equal(as_dense(graph.features), np.eye(34))


def test_an_unknown_bundled_graph_names_the_known_ones() -> None:
    assert "choose one of adjnoun, as-22july06" in refusal(dataset("dataset=karate", "dataset.file=nosuch"))


# -- splits ------------------------------------------------------------------------------------------------------------


def test_a_random_split_parts_the_labelled_nodes_and_follows_its_seed() -> None:
    graph = load(dataset("dataset=polblogs"))
    first, again, other = graph.split(0), graph.split(0), graph.split(1)
    parts = torch.cat([first.train, first.val, first.test])
    assert torch.equal(parts.sort().values, torch.arange(graph.num_nodes))
    assert len(first.train) == int(0.6 * graph.num_nodes)
    assert torch.equal(first.train, again.train) and not torch.equal(first.train, other.train)


def test_a_split_per_class_takes_as_many_of_each() -> None:
    rule = {"kind": "per_class", "train_per_class": 7, "val": 20, "test": 30}
    graph = load(dataset("dataset=polbooks") | {"split": rule})
    split = graph.split(3)
    assert torch.bincount(graph.labels[split.train]).tolist() == [7, 7, 7]
    assert len(split.val) == 20 and len(split.test) == 30
    assert len(torch.cat([split.train, split.val, split.test]).unique()) == 71


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"kind": "per_class", "train_per_class": 7, "val": 90, "test": 30}, "120 asked for; lower dataset.split"),
        ({"kind": "random", "train": 0.999, "val": 0.0005}, "the val part of the split is empty"),
    ],
)
def test_a_split_that_the_labels_cannot_fill_is_refused(rule: dict, said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        load(dataset("dataset=polbooks") | {"split": rule}).split(0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "sqlite"}, "unknown dataset.kind 'sqlite'; choose one of bundled, cora"),
        ({"split": {"kind": "k-fold"}}, "unknown dataset.split.kind 'k-fold'; choose one of random"),
        ({"split": {"kind": "random", "train": 0.9, "val": 0.2}}, "positive shares with a sum below 1"),
        ({"split": {"kind": "given"}}, "brings no split of its own"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict, said: str) -> None:
    assert said in refusal(dataset("dataset=karate") | change)


def test_a_graph_without_labels_cannot_be_split() -> None:
    with pytest.raises(DatasetError, match="karate: has no labels to train on; give some with dataset.labels=FILE"):
        load(dataset("dataset=karate")).split(0)


# -- files of the user -------------------------------------------------------------------------------------------------


def write_scipy_npz(path: Path) -> None:
    scipy.sparse.save_npz(path, scipy.sparse.csc_matrix(adjacency()))


def write_csr_npz(path: Path) -> None:
    matrix = scipy.sparse.csr_matrix(adjacency())
    np.savez(path, indptr=matrix.indptr, indices=matrix.indices, data=matrix.data)


def write_edge_index_npz(path: Path) -> None:
    np.savez(path, edge_index=np.array(EDGES).T, value=np.array(WEIGHTS, np.float32), shape=np.array([NODES, NODES]))


def write_coordinates_npz(path: Path) -> None:
    source, target = np.array(EDGES).T
    np.savez(path, row=target, col=source, value=np.array(WEIGHTS), shape=np.array([NODES, NODES]))


def write_mtx(path: Path) -> None:
    scipy.io.mmwrite(path, scipy.sparse.coo_matrix(adjacency()))


def write_text(path: Path, separator: str = " ") -> None:
    lines = [f"{s}{separator}{t}{separator}{w}" for (s, t), w in zip(EDGES, WEIGHTS, strict=True)]
    lines.append(separator.join(["4", "4", "1.0"]))  # a self-loop is dropped, the node stays
    path.write_text("\n".join(["# source target weight", *lines, ""]))


def write_commas(path: Path) -> None:
    write_text(path, ",")


def write_gzip(path: Path) -> None:
    write_text(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("scipy.npz", write_scipy_npz),
        ("csr.npz", write_csr_npz),
        ("edge_index.npz", write_edge_index_npz),
        ("coordinates.npz", write_coordinates_npz),
        ("graph.mtx", write_mtx),
        ("edges.txt", write_text),
        ("edges.csv", write_commas),
        ("edges.tsv.gz", write_gzip),
    ],
)
def test_every_format_gives_the_same_graph(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    graph = user_graph(tmp_path / name)
    assert np.array_equal(as_dense(graph.edges), adjacency())
    both_ways = user_graph(tmp_path / name, undirected=True).edges
    assert np.array_equal(as_dense(both_ways) != 0, (adjacency() + adjacency().T) != 0)


def test_weights_that_are_all_one_are_not_stored(tmp_path: Path) -> None:
    scipy.io.mmwrite(tmp_path / "graph.mtx", scipy.sparse.coo_matrix(adjacency(weighted=False)))
    assert user_graph(tmp_path / "graph.mtx").edges.value is None


def test_labels_and_features_come_from_the_file_or_beside_it(tmp_path: Path) -> None:
    labels, features = np.array([0, 1, -1, 1, 2]), np.arange(10, dtype=np.float32).reshape(NODES, 2)
    np.savez(tmp_path / "within.npz", edge_index=np.array(EDGES).T, shape=np.array([NODES]), y=labels, x=features)
    write_text(tmp_path / "edges.txt")
    np.savetxt(tmp_path / "labels.txt", labels, fmt="%d")
    np.save(tmp_path / "features.npy", features)
    beside = {"labels": tmp_path / "labels.txt", "features": tmp_path / "features.npy"}
    for graph in (user_graph(tmp_path / "within.npz"), user_graph(tmp_path / "edges.txt", **beside)):
        assert graph.labels.tolist() == labels.tolist() and graph.num_classes == 3
        assert np.array_equal(graph.features, features)
    scipy.sparse.save_npz(tmp_path / "features.npz", scipy.sparse.csr_matrix(features))
    graph = user_graph(tmp_path / "edges.txt", features=tmp_path / "features.npz")
    assert np.array_equal(as_dense(graph.features), features)


def corrupt(path: Path) -> None:
    write_csr_npz(path)
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("short.npz", corrupt, "malformed"),
        ("text.npz", lambda path: path.write_text("0 1\n"), "malformed"),
        ("empty.npz", lambda path: np.savez(path, other=np.ones(2)), "no array"),
        ("pickled.npz", lambda path: np.savez(path, row=np.array([{}]), col=np.array([{}])), "allow_pickle"),
        ("outside.npz", lambda path: np.savez(path, edge_index=[[0, 9], [1, 0]], shape=[3]), "outside 0..2"),
        ("negative.npz", lambda path: np.savez(path, edge_index=[[0, -1], [1, 0]]), "node -1"),
        ("ends.npz", lambda path: np.savez(path, row=[0, 1], col=[1]), "equally long"),
        ("weights.npz", lambda path: np.savez(path, row=[0, 1], col=[1, 0], value=[1.0]), "edge weights: 1 of them"),
        ("labels.npz", lambda path: np.savez(path, row=[0, 1], col=[1, 0], y=[1, 0, 1]), "labels: 3 of them"),
        ("features.npz", lambda path: np.savez(path, row=[0], col=[1], x=np.ones((3, 2))), "features: 3 of them"),
        ("flat.npz", lambda path: np.savez(path, row=[0], col=[1], x=np.ones(2)), "two dimensions"),
        ("oblong.mtx", lambda path: scipy.io.mmwrite(path, scipy.sparse.coo_matrix(np.ones((2, 3)))), "square"),
        ("dense.mtx", lambda path: scipy.io.mmwrite(path, np.ones((2, 2))), "coordinate matrix"),
        ("complex.mtx", lambda path: scipy.io.mmwrite(path, scipy.sparse.coo_matrix(1j * np.ones((2, 2)))), "complex"),
        ("words.mtx", lambda path: path.write_text("hello\n"), "malformed"),
        ("words.txt", lambda path: path.write_text("a b\n"), "malformed"),
        ("wide.txt", lambda path: path.write_text("0 1 1 1\n"), "4 columns"),
        ("halves.txt", lambda path: path.write_text("0 0.5\n"), "whole"),
        ("minus.txt", lambda path: path.write_text("0 -1\n"), "not negative"),
        ("ragged.txt", lambda path: path.write_text("0 1\n1 2 3\n"), "malformed"),
        ("plain.txt.gz", lambda path: path.write_text("0 1\n"), "malformed"),
    ],
)
def test_a_malformed_file_is_refused_in_one_line(
    tmp_path: Path, name: str, write: Callable[[Path], None], said: str
) -> None:
    write(tmp_path / name)
    message = refusal(dataset("dataset=user", f"dataset.path='{tmp_path / name}'"))
    assert said in message and "conf/dataset/user.yaml" in message


def test_an_empty_edge_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("")
    assert "malformed (no edges)" in refusal(dataset("dataset=user", f"dataset.path='{tmp_path / 'edges.txt'}'"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    message = refusal(dataset("dataset=user", f"dataset.path='{tmp_path / 'no.mtx'}'"))
    assert "no.mtx: no such file; set dataset.path to" in message


# -- fetched data sets -------------------------------------------------------------------------------------------------


def wheel(cache: Path, name: str, files: Mapping[str, bytes]) -> str:
    """Put a wheel with `files` into the cache; returns its checksum."""
    path = cache / "wheels" / f"{name}-py3-none-any.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def parquet(**columns: object) -> bytes:
    buffer = io.BytesIO()
    pandas.DataFrame(columns).to_parquet(buffer, compression="gzip")
    return buffer.getvalue()


def test_cora_is_read_from_its_wheel(cache: Path) -> None:
    words = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]])
    nodes = parquet(nodeId=[30, 10, 20, 40], features=list(words), subject=[1, 0, 2, 1])
    links = parquet(sourceNodeId=[30, 20], targetNodeId=[10, 40])
    config = dataset("dataset=cora")
    folder = config["folder"]
    files = {f"{folder}/cora_nodes.parquet.gzip": nodes, f"{folder}/cora_rels.parquet.gzip": links}
    graph = load(config | {"sha256": wheel(cache, "graphdatascience-2.2", files)})
    assert np.array_equal(as_dense(graph.features), words)
    assert graph.labels.tolist() == [1, 0, 2, 1]
    assert sorted(zip(graph.edges.row.tolist(), graph.edges.col.tolist(), strict=True)) == [
        (0, 1), (1, 0), (2, 3), (3, 2)
    ]  # fmt: skip


def test_imdb_is_read_from_its_wheel_with_its_relations(cache: Path) -> None:
    words = np.eye(5, 3)
    config = dataset("dataset=imdb")
    parts = {
        "movies_with_genre": parquet(nodeId=[1], genre=[2], plot_keywords=[words[1]]),
        "movies_without_genre": parquet(nodeId=[0], plot_keywords=[words[0]]),
        "directors": parquet(nodeId=[2], plot_keywords=[words[2]]),
        "actors": parquet(nodeId=[4, 3], plot_keywords=[words[4], words[3]]),
        "acted_in": parquet(sourceNodeId=[3, 4, 4], targetNodeId=[0, 0, 1]),
        "directed_in": parquet(sourceNodeId=[2], targetNodeId=[1]),
    }
    files = {f"{config['folder']}/imdb_{name}.parquet.gzip": data for name, data in parts.items()}
    graph = load(config | {"sha256": wheel(cache, "graphdatascience-2.2", files)})
    assert graph.labels.tolist() == [-1, 2, -1, -1, -1] and graph.num_classes == 3
    assert np.array_equal(as_dense(graph.features), words)
    ends = [list(zip(r.row.tolist(), r.col.tolist(), strict=True)) for r in graph.relations]
    acted, directed = [(0, 3), (0, 4), (1, 4)], [(1, 2)]
    assert ends == [acted, directed, *(sorted((b, a) for a, b in some) for some in (acted, directed))]
    assert graph.edges.nnz == 8


def test_roads_are_read_as_text_and_never_run(cache: Path) -> None:
    config = dataset("dataset=roads")
    text = b"x = object(\ngraph=[{1: 2.5, 2: 4}, {0: 2.5}, {}, {2:1.25}]\n"
    graph = load(config | {"sha256": wheel(cache, "scgraph_data-2.0.0", {config["member"]: text})})
    expected = np.zeros((4, 4), np.float32)
    expected[0, 1], expected[0, 2], expected[1, 0], expected[3, 2] = 2.5, 4, 2.5, 1.25
    assert np.array_equal(as_dense(graph.edges), expected)


def test_a_download_that_fails_says_what_to_do(cache: Path) -> None:
    message = refusal(dataset("dataset=cora"))
    assert "graphdatascience==2.2: pip could not download it" in message
    assert f"put it in {cache / 'wheels'}" in message
    assert not list((cache / "wheels").iterdir())


def test_a_cached_file_with_another_checksum_is_not_read(cache: Path) -> None:
    found = wheel(cache, "graphdatascience-2.2", {"anything": b"else"})
    message = refusal(dataset("dataset=cora"))
    assert f"SHA-256 is {found[:16]}..., expected 1e978c3bf5c2cece..." in message and "delete" in message


def test_a_downloaded_file_with_another_checksum_is_not_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = "graphdatascience-2.2.dist-info"
    files = {
        f"{folder}/METADATA": b"Metadata-Version: 2.1\nName: graphdatascience\nVersion: 2.2\n",
        f"{folder}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    wheel(tmp_path, "graphdatascience-2.2", files)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    assert "the index serves another file under this version" in refusal(dataset("dataset=cora"))
    assert not list((cache / "wheels").iterdir())


def test_a_cache_that_cannot_be_created_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BRAIDWORK_CACHE", str(tmp_path / "file"))
    assert "set BRAIDWORK_CACHE to a writable folder" in refusal(dataset("dataset=cora"))


def test_a_large_download_waits_to_be_asked_for(tmp_path: Path) -> None:
    message = refusal(dataset("dataset=ogbn_arxiv", f"dataset.root='{tmp_path}'"))
    assert f"ogbn-arxiv: not found in {tmp_path / 'ogbn_arxiv'}; add dataset.download=true" in message


def test_ogb_is_read_as_its_files_lie_there(tmp_path: Path) -> None:
    folder = tmp_path / "ogbn_arxiv"
    tables = {
        "raw/edge": EDGES,
        "raw/node-feat": [[0.5, 1.0]] * NODES,
        "raw/node-label": [[1], [0], [2], [1], [0]],
        "raw/node_year": [[2020]] * NODES,
        "raw/num-node-list": [[NODES]],
        "raw/num-edge-list": [[len(EDGES)]],
        "split/time/train": [[0], [3]],
        "split/time/valid": [[1]],
        "split/time/test": [[2], [4]],
    }
    for name, lines in tables.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(",".join(map(str, line)) + "\n" for line in lines).encode()))
    (folder / "processed").mkdir()
    (folder / "RELEASE_v1.txt").write_text("")
    graph = load(dataset("dataset=ogbn_arxiv", f"dataset.root='{tmp_path}'") | {"undirected": False})
    assert np.array_equal(as_dense(graph.edges), adjacency(weighted=False))
    assert graph.labels.tolist() == [1, 0, 2, 1, 0] and graph.features.shape == (NODES, 2)
    assert [part.tolist() for part in vars(graph.split(0)).values()] == [[0, 3], [1], [2, 4]]
