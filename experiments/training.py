"""Training of a model on a graph, full batch or in mini-batches, with early stopping and checkpoints, in turns."""

from __future__ import annotations

import copy
import inspect
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from braidwork.models import MODELS, RGCN, Backend, NeighbourSampler, Network, get_backend
from braidwork.models.edges import take_rows
from braidwork.models.stored import Chosen

from .datasets import Graph

_IGNORED = -100


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
        epochs: most epochs. patience: epochs without a better validation accuracy before stopping.
        lr, weight_decay: of Adam. decay_first_layer: the decay acts on the first layer alone, as Kipf and Welling do.
        eval_every: epochs between two evaluations.
        checkpoint_s: seconds between two checkpoints.
        batch_size: training nodes of a batch, whose neighbourhoods are sampled; 0 for all nodes of the graph at once.
            Accuracies are those of the whole graph either way.
        fanouts: neighbours to sample for each layer, the first layer first; without effect where all nodes go at once.
    """

    epochs: int = 200
    patience: int = 50
    lr: float = 0.01
    weight_decay: float = 0.0
    decay_first_layer: bool = False
    eval_every: int = 1
    checkpoint_s: float = 20.0
    batch_size: int = 0
    fanouts: Sequence[int] = (10, 10)

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "eval_every"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"train.{name}: must be a whole number of at least 1, got {value!r}")
        for name in ("lr", "weight_decay", "checkpoint_s"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value < math.inf or (name == "lr" and value == 0):
                kind = "positive" if name == "lr" else "0 or more"
                raise ValueError(f"train.{name}: must be a number, {kind}, got {value!r}")
        if type(self.batch_size) is not int or self.batch_size < 0:
            raise ValueError(f"train.batch_size: must be a whole number, 0 or more, got {self.batch_size!r}")
        if not isinstance(self.fanouts, (list, tuple)) or any(type(f) is not int or f < 1 for f in self.fanouts):
            raise ValueError(f"train.fanouts: must be a list of whole numbers of at least 1, got {self.fanouts!r}")
        if type(self.decay_first_layer) is not bool:
            raise ValueError(f"train.decay_first_layer: must be true or false, got {self.decay_first_layer!r}")

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> TrainConfig:
        known = {f.name for f in fields(cls)}
        for name in config:
            if name not in known:
                raise ValueError(f"train.{name}: unknown setting; known are {', '.join(sorted(known))}")
        return cls(**config)


def build_model(config: Mapping[str, Any], graph: Graph, backend: Backend) -> torch.nn.Module:
    """The model that a `conf/model` group describes, sized for the graph, of the backend's layers.

    Raises:
        ValueError: unknown name or option.
    """
    options = dict(config)
    name = options.pop("name")
    if name not in MODELS:
        raise ValueError(f"model: unknown {name!r}; choose one of {', '.join(MODELS)}")
    made = MODELS[name]
    parameters = inspect.signature(made).parameters | inspect.signature(Network).parameters
    known = set(parameters) - {"in_channels", "out_channels", "layer", "num_relations", "sizes", "options"}
    for option in options:
        if option not in known:
            raise ValueError(f"model.{option}: unknown option of {name}; known are {', '.join(sorted(known))}")
    if made is RGCN:
        options["num_relations"] = len(graph.relations)
    try:
        return made(
            in_channels=graph.num_features, out_channels=graph.num_classes, layer=backend.layers[name], **options
        )
    except TypeError as error:
        raise ValueError(f"model: {error}") from error


@dataclass
class History:
    """What a run wrote down. The two lists of an evaluation go with `eval_epoch`; times are in seconds."""

    loss: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    eval_epoch: list[int] = field(default_factory=list)
    eval_s: list[float] = field(default_factory=list)
    val_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)


class Trainer:
    """One model on one backend, seeded; its random state is its own, so that trainers can take turns in a process."""

    def __init__(
        self, graph: Graph, model: Mapping[str, Any], train: TrainConfig, seed: int, backend: str, format: str = "csr"
    ):
        self.config, self.seed, self.backend = train, seed, get_backend(backend)
        stored = (format, train.epochs) if self.backend.has_formats else ()
        if not stored and format != "csr":
            raise ValueError(f"format: {backend} has none to choose from, got {format!r}")
        self.graph = self.backend.graph(graph.edges, graph.relations, *stored)
        self.input = self.backend.features(graph.features, *stored)
        self.split = graph.split(seed)
        assert graph.labels is not None  # split() refuses a graph without
        self.labels = graph.labels
        # The loss over all nodes with the others ignored: it needs no gather of the training rows and no scatter back.
        self.targets = torch.full_like(graph.labels, _IGNORED)
        self.targets[self.split.train] = graph.labels[self.split.train]
        self._rng = torch.Generator().manual_seed(seed).get_state()
        with self._own_randomness():
            self.model = build_model(model, graph, self.backend)
        self._features = graph.features
        self._sampler = self._make_sampler(graph, model) if train.batch_size else None
        self.optimizer = torch.optim.Adam(self._groups(), lr=train.lr, fused=True)
        self.epoch, self.stopped = 0, False
        self.best = {"epoch": 0, "val_accuracy": -1.0, "test_accuracy": -1.0}
        self.best_state: dict[str, torch.Tensor] = {}
        self.history = History()

    def _make_sampler(self, graph: Graph, model: Mapping[str, Any]) -> NeighbourSampler:
        if model["name"] != "sage":
            raise ValueError(
                f"train.batch_size: sampled neighbourhoods stand for a mean over neighbours, which model=sage takes; "
                f"{model['name']} needs all nodes at once, train.batch_size=0"
            )
        layers = len(self.model.layers)  # type: ignore[arg-type]
        if len(self.config.fanouts) != layers:
            raise ValueError(f"train.fanouts: need one for each of {layers} layers, got {list(self.config.fanouts)}")
        return NeighbourSampler(graph.edges, self.config.fanouts, self.split.train, self.config.batch_size, self.seed)

    def _groups(self) -> list[dict]:
        decay = self.config.weight_decay
        if not self.config.decay_first_layer:
            return [{"params": list(self.model.parameters()), "weight_decay": decay}]
        # Lists in the order of the module: a resumed optimiser finds the state of a parameter by its place.
        first = [p for name, p in self.model.named_parameters() if name.startswith("layers.0.")]
        rest = [p for name, p in self.model.named_parameters() if not name.startswith("layers.0.")]
        return [{"params": first, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self._rng)
        try:
            yield
        finally:
            self._rng = torch.get_rng_state()
            torch.set_rng_state(outside)

    @property
    def best_so_far(self) -> str:
        """The best validation accuracy, for a line of progress; empty before the first evaluation."""
        return f"{self.best['val_accuracy']:.1f}%" if self.best["epoch"] else ""

    def step(self) -> torch.Tensor:
        """One epoch: forward, backward and update on all nodes, or batch after batch. Returns the mean loss."""
        self.model.train()
        if self._sampler is None:
            return self._update(self.input, self.graph, self.targets)
        total = torch.zeros(())
        for block in self._sampler:
            features = self._features
            mine = features[block.nodes] if isinstance(features, torch.Tensor) else take_rows(features, block.nodes)
            # A block is multiplied with once and is gone: no format pays for its conversion.
            graphs = [self.backend.graph(edges) for edges in block.layers]
            loss = self._update(self.backend.features(mine), graphs, self.labels[block.batch])
            total += loss * block.batch.numel()
        return total / self.split.train.numel()

    def _update(self, features: Any, graph: Any, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with self._own_randomness():
            out = self.model(features, graph)
        loss = F.cross_entropy(out, targets, ignore_index=_IGNORED)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Accuracy on the validation and test nodes, in percent."""
        self.model.eval()
        right = self.model(self.input, self.graph).argmax(1) == self.labels
        parts = {"val": self.split.val, "test": self.split.test}
        return {f"{name}_accuracy": 100.0 * int(right[part].sum()) / part.numel() for name, part in parts.items()}

    def advance(self) -> bool:
        """One epoch, with its evaluation if one is due. Returns whether there is more to do."""
        if self.stopped:
            return False
        history = self.history
        start = time.perf_counter()
        loss = self.step().item()
        history.step_s.append(time.perf_counter() - start)
        history.loss.append(loss)
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at epoch {self.epoch + 1}; lower train.lr")
        self.epoch += 1
        if self.epoch % self.config.eval_every == 0 or self.epoch == self.config.epochs:
            start = time.perf_counter()
            scores = self.evaluate()
            history.eval_s.append(time.perf_counter() - start)
            history.eval_epoch.append(self.epoch)
            history.val_accuracy.append(scores["val_accuracy"])
            history.test_accuracy.append(scores["test_accuracy"])
            if scores["val_accuracy"] > self.best["val_accuracy"]:
                self.best = {"epoch": self.epoch, **scores}
                self.best_state = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.stopped = self.epoch >= self.config.epochs or self.epoch - self.best["epoch"] >= self.config.patience
        return not self.stopped

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run needs to go on as if it had not been interrupted."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self._rng,
            "sampler": None if self._sampler is None else self._sampler.generator.get_state(),
            "epoch": self.epoch,
            "stopped": self.stopped,
            "best": self.best,
            "best_state": self.best_state,
            "history": vars(self.history),
            "formats": copy.deepcopy(self._chosen()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._rng, self.epoch, self.stopped = state["rng"], state["epoch"], state["stopped"]
        if self._sampler is not None:
            self._sampler.generator.set_state(state["sampler"])
        self.best, self.best_state = state["best"], state["best_state"]
        self.history = History(**state["history"])
        for operand, mine in self._chosen().items():
            for operator, chosen in state["formats"][operand].items():
                mine.setdefault(operator, {}).update(chosen)

    def _chosen(self) -> dict[str, dict[str, Chosen]]:
        """What "auto" has picked, by operand and operator, to be read and written; see `Stored`."""
        stored = getattr(self.input, "stored", None)
        return {
            "graph": getattr(self.graph, "chosen", {}),
            "input": {} if stored is None else {"features": stored.chosen},
        }


def save_atomically(state: Any, path: Path) -> None:
    """`torch.save` that leaves the old file or the new one, whenever the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with open(partial, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def train_in_turns(
    trainers: Sequence[Trainer],
    checkpoint: Path | None = None,
    on_epoch: Callable[[Sequence[Trainer]], None] | None = None,
) -> None:
    """Train all to the end, an epoch each in turns, so that a slow spell of the machine meets them alike.

    Args:
        trainers: stopped ones are left out of their turn.
        checkpoint: saved to at intervals, resumed from if it is there, and left as it was at the end.
        on_epoch: called after every round.
    """
    _resume(trainers, checkpoint)
    saved = time.monotonic()
    while any(not trainer.stopped for trainer in trainers):
        for trainer in trainers:
            trainer.advance()
        if on_epoch is not None:
            on_epoch(trainers)
        if checkpoint is not None and time.monotonic() - saved >= trainers[0].config.checkpoint_s:
            save_atomically([trainer.state_dict() for trainer in trainers], checkpoint)
            saved = time.monotonic()
    if checkpoint is not None:
        save_atomically([trainer.state_dict() for trainer in trainers], checkpoint)


def _resume(trainers: Sequence[Trainer], checkpoint: Path | None) -> None:
    if checkpoint is None or not checkpoint.exists():
        return
    states = torch.load(checkpoint, weights_only=True)
    for trainer, state in zip(trainers, states, strict=True):
        trainer.load_state_dict(state)
