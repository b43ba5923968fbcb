"""Training: early stopping, the best epoch, checkpoints that continue bit for bit, and turns that do not interfere."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from braidwork.experiments.datasets import Graph
from braidwork.experiments.training import TrainConfig, Trainer, build_model, train_in_turns
from braidwork.kernels.sparse import SparseMatrix
from braidwork.models import Coo, get_backend

MODEL = {"name": "gcn", "hidden_channels": 8, "dropout": 0.5, "input_dropout": 0.2}
TIMES = ("step_s", "eval_s")


def trainer(graph: Graph, seed: int = 0, backend: str = "braidwork", **options: object) -> Trainer:
    return Trainer(graph, MODEL, TrainConfig(**{"epochs": 12, "patience": 12} | options), seed, backend)


def outcome(run: Trainer) -> dict:
    """All that training decides; times differ from run to run."""
    history = {name: values for name, values in vars(run.history).items() if name not in TIMES}
    weights = {name: tensor.tolist() for name, tensor in run.model.state_dict().items()}
    best = {name: tensor.tolist() for name, tensor in run.best_state.items()}
    return {"history": history, "weights": weights, "best": run.best, "best_state": best, "epoch": run.epoch}


def test_training_learns_the_groups(graph: Graph) -> None:
    run = trainer(graph, epochs=80, patience=80, lr=0.05)
    train_in_turns([run])
    assert run.history.loss[-1] < 0.7 * run.history.loss[0]
    assert run.best["test_accuracy"] > 70  # a third by chance
    assert run.epoch == 80 and run.stopped


def test_the_best_epoch_is_that_of_the_best_validation_accuracy(graph: Graph) -> None:
    run = trainer(graph, epochs=30, patience=30, eval_every=4, lr=0.05)
    train_in_turns([run])
    history = run.history
    assert history.eval_epoch == [4, 8, 12, 16, 20, 24, 28, 30]
    place = history.val_accuracy.index(max(history.val_accuracy))
    assert run.best["epoch"] == history.eval_epoch[place]
    assert run.best["test_accuracy"] == history.test_accuracy[place]
    run.model.load_state_dict(run.best_state)
    assert run.evaluate()["val_accuracy"] == run.best["val_accuracy"]


def test_accuracy_counts_the_nodes_of_each_part(graph: Graph) -> None:
    run = trainer(graph)
    run.model.eval()
    right = run.model(run.input, run.graph).argmax(1) == graph.labels
    for part in ("val", "test"):
        nodes = getattr(run.split, part)
        assert run.evaluate()[f"{part}_accuracy"] == pytest.approx(100 * right[nodes].double().mean().item())


def test_it_stops_when_validation_no_longer_improves(graph: Graph) -> None:
    run = trainer(graph, epochs=500, patience=7, lr=0.05)
    train_in_turns([run])
    assert run.epoch < 500
    assert run.epoch - run.best["epoch"] == 7
    assert max(run.history.val_accuracy[-7:]) <= run.best["val_accuracy"]


def test_nodes_outside_the_training_part_do_not_steer_it(graph: Graph) -> None:
    first = trainer(graph)
    labels = graph.labels.clone()
    labels[first.split.test] = (labels[first.split.test] + 1) % 3
    second = trainer(dataclasses.replace(graph, labels=labels))
    assert torch.equal(first.split.train, second.split.train)
    losses = [[run.step().item() for _ in range(4)] for run in (first, second)]
    assert losses[0] == losses[1]


def test_a_seed_decides_a_run_and_another_differs(graph: Graph) -> None:
    runs = [trainer(graph, seed=seed) for seed in (3, 3, 4)]
    for number, run in enumerate(runs):
        torch.manual_seed(number)  # what else draws in the process does not matter
        train_in_turns([run])
    first, again, other = map(outcome, runs)
    assert first == again and first["weights"] != other["weights"]


@pytest.mark.parametrize("killed_after", [1, 5, 11])
@pytest.mark.parametrize("decay_first_layer", [False, True])
def test_a_resumed_run_continues_bit_for_bit(
    graph: Graph, tmp_path: Path, killed_after: int, decay_first_layer: bool
) -> None:
    options = {"checkpoint_s": 0.0, "decay_first_layer": decay_first_layer, "weight_decay": 1e-2, "eval_every": 3}
    whole = trainer(graph, **options)
    train_in_turns([whole])

    def kill(runs: Sequence[Trainer]) -> None:
        if runs[0].epoch > killed_after:  # called before the checkpoint of this epoch is written
            raise KeyboardInterrupt

    checkpoint = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        train_in_turns([trainer(graph, **options)], checkpoint, kill)
    resumed, began = trainer(graph, **options), []
    train_in_turns([resumed], checkpoint, lambda runs: began.append(runs[0].epoch))
    assert began[0] == killed_after + 1
    assert outcome(resumed) == outcome(whole)
    assert len(resumed.history.step_s) == resumed.epoch
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"], "no partial file stays"


def test_a_resumed_run_keeps_the_formats_that_were_picked(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(epochs=6, patience=6)
    run = Trainer(graph, MODEL, config, 0, "braidwork", "auto")
    for _ in range(3):
        run.advance()
    assert set(run.state_dict()["formats"]["graph"]["normalised"]) == {"3", "8"}
    again = Trainer(graph, MODEL, config, 0, "braidwork", "auto")
    again.load_state_dict(copy.deepcopy(run.state_dict()))
    monkeypatch.setattr(SparseMatrix, "auto", None)
    for trained in (run, again):
        trained.advance()
    assert outcome(again) == outcome(run)


SAGE = {"name": "sage", "hidden_channels": 8, "dropout": 0.5}


@pytest.mark.parametrize("sparse", [False, True])
def test_mini_batches_learn_and_continue_bit_for_bit(graph: Graph, sparse: bool) -> None:
    if sparse:
        row, col = graph.features.nonzero().T
        value = graph.features[row, col]
        graph = dataclasses.replace(graph, features=Coo(row, col, value, tuple(graph.features.shape)))
    config = TrainConfig(epochs=40, patience=40, lr=0.02, batch_size=8, fanouts=[3, 2])

    def made() -> Trainer:
        return Trainer(graph, SAGE, config, 0, "braidwork")

    whole, first, second = made(), made(), made()
    train_in_turns([whole])
    assert sum(whole.history.loss[-5:]) < 0.5 * sum(whole.history.loss[:5])
    for _ in range(17):
        first.advance()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train_in_turns([second])
    assert outcome(second) == outcome(whole)


def test_a_batch_of_all_with_all_neighbours_is_the_full_batch(graph: Graph) -> None:
    model = SAGE | {"dropout": 0.0}
    runs = [
        Trainer(graph, model, TrainConfig(batch_size=size, fanouts=(100, 100)), 0, "braidwork") for size in (0, 60)
    ]
    losses = [[run.step().item() for _ in range(5)] for run in runs]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)


def test_mini_batches_are_refused_where_they_would_be_wrong(graph: Graph) -> None:
    with pytest.raises(ValueError, match=r"train.batch_size: .*gcn needs all nodes at once"):
        trainer(graph, batch_size=8)
    with pytest.raises(ValueError, match=r"train.fanouts: need one for each of 2 layers, got \[3\]"):
        Trainer(graph, SAGE, TrainConfig(batch_size=8, fanouts=[3]), 0, "braidwork")


def test_formats_are_for_our_kernels_alone(graph: Graph) -> None:
    with pytest.raises(ValueError, match="format: torch has none to choose from, got 'sell'"):
        Trainer(graph, MODEL, TrainConfig(), 0, "torch", "sell")


def test_a_finished_run_is_not_trained_on(graph: Graph, tmp_path: Path) -> None:
    first = trainer(graph)
    train_in_turns([first], tmp_path / "run.pt")
    second = trainer(graph)
    train_in_turns([second], tmp_path / "run.pt", lambda runs: pytest.fail("there is nothing left to do"))
    assert outcome(second) == outcome(first)


def test_taking_turns_changes_nothing(graph: Graph, tmp_path: Path) -> None:
    alone = [trainer(graph, backend=backend) for backend in ("braidwork", "torch")]
    for run in alone:
        train_in_turns([run])
    together = [trainer(graph, backend=backend) for backend in ("braidwork", "torch")]
    train_in_turns(together, tmp_path / "both.pt")
    assert [outcome(run) for run in together] == [outcome(run) for run in alone]
    torch.testing.assert_close(alone[0].history.loss, alone[1].history.loss, rtol=1e-3, atol=1e-4)


def test_a_loss_that_is_no_number_ends_the_run(graph: Graph) -> None:
    run = trainer(dataclasses.replace(graph, features=graph.features * float("nan")))
    with pytest.raises(FloatingPointError, match="the loss is nan at epoch 1; lower train.lr"):
        run.advance()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"epochs": 0}, "train.epochs"),
        ({"patience": 2.5}, "train.patience"),
        ({"eval_every": True}, "train.eval_every"),
        ({"lr": 0}, "train.lr"),
        ({"lr": float("nan")}, "train.lr"),
        ({"weight_decay": -1.0}, "train.weight_decay"),
        ({"checkpoint_s": "soon"}, "train.checkpoint_s"),
        ({"batch_size": -1}, "train.batch_size"),
        ({"fanouts": [3, 0]}, "train.fanouts"),
        ({"decay_first_layer": 1}, "train.decay_first_layer"),
        ({"momentum": 0.9}, "train.momentum: unknown setting"),
    ],
)
def test_impossible_settings_are_refused_by_name(options: dict, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}"):
        TrainConfig.from_mapping(options)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"name": "transformer"}, "model: unknown 'transformer'; choose one of gcn"),
        ({"name": "gcn", "hidden_channels": 8, "heads": 4}, "model.heads: unknown option of gcn"),
        ({"name": "gcn", "hidden_channels": 8, "layer": None}, "model.layer: unknown option of gcn"),
        ({"name": "gcn"}, "model: .*hidden_channels"),
    ],
)
def test_an_unknown_model_or_option_is_refused_by_name(graph: Graph, model: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build_model(model, graph, get_backend("braidwork"))
