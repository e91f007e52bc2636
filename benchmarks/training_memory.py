"""How much memory a training step of DT, AD, DPT and RA-DT needs on a GPU, counted without one.

    python -m benchmarks.training_memory                     # all methods and worlds of scale `paper`, as set there
    python -m benchmarks.training_memory --micro-batches 1   # with whole batches

The step runs on PyTorch's device "meta", whose tensors have shapes and no numbers. At each moment the bytes of all
tensors that are alive are added up; the highest sum is the peak. Products are in bfloat16 and attention keeps what the
flash kernel keeps, as autocast does it on a GPU. Not in it: the histories, the memory's keys, what makes a batch, what
an allocator loses to fragments (PyTorch's usually some per cent), CUDA itself (about half a GB), and torch.compile, which
keeps less.
"""

from __future__ import annotations

import argparse
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from recollect.common.contract import Facts, facts_of
from recollect.radt import dpt
from recollect.radt.chunks import chunk_settings, memory_of
from recollect.radt.dt import action_loss
from recollect.radt.experience import Experience
from recollect.radt.radt import Batch, radt_loss
from recollect.radt.supervised import Gradients, make_optimiser
from recollect.settings.resolve import algorithm_module, resolve
from recollect.settings.schema import Settings

META = torch.device("meta")
WORLDS = (
    "dark_room_10x10",
    "dark_room_20x20",
    "dark_room_40x20",
    "maze_runner_15x15",
    "meta_world",
    "dm_control",
    "procgen",
)
METHODS = ("dt", "ad", "dpt", "radt")
# Of worlds whose packages need not be installed: entries of an observation, discrete actions, longest episode, numbers of
# a continuous action.
FACTS = {"meta_world": (39, 0, 200, 4), "dm_control": (204, 0, 1000, 6), "procgen": (768, 15, 1000, 0)}


class Flash(torch.autograd.Function):
    """What the flash kernel keeps: its inputs, its result and one number per query and head."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, y, q.new_empty(q.shape[:3], dtype=torch.float32))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(kept) for kept in ctx.saved_tensors[:3])


class AsOnAGPU(TorchFunctionMode):
    """Autocast to bfloat16, fused attention and dropout that keeps a mask of bytes, on the meta device."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            return Flash.apply(*(part.bfloat16() for part in args[:3]))
        if function is F.dropout:
            return torch.native_dropout(args[0], args[1] if len(args) > 1 else kwargs["p"], True)[0]
        if function in (F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__):
            args = tuple(part.bfloat16() if isinstance(part, Tensor) else part for part in args)
        return function(*args, **kwargs)


class Alive(TorchDispatchMode):
    """Adds up the bytes of all storages that operations have made and that are still held."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for tensor in tree_iter(found):
            if isinstance(tensor, Tensor):
                self.sizes[tensor.untyped_storage()] = tensor.untyped_storage().nbytes()
        self.peak = max(self.peak, sum(self.sizes.values()))
        return found


def windows(facts: Facts, rows: int, steps: int) -> Experience:
    """Windows of an environment, without numbers."""
    number = torch.empty(rows, steps, device=META)
    action = number.long()
    if facts.action_size:
        action = torch.empty(rows, steps, facts.action_size, device=META)
    observation = torch.empty(rows, steps, facts.observation_size, device=META)
    return Experience(observation, number, action, number, number.long(), number.bool())


def peak_bytes(settings: Settings, facts: Facts) -> int:
    """The most bytes that one training step holds: weights, gradients, Adam's state, activations and the batch."""
    chosen, method = settings.method.hyperparameters, settings.method.algorithm
    rows, steps = chosen.optimisation.batch_size, min(chosen.context, facts.horizon)
    module = algorithm_module(method, where="", does="network")
    network = module.build_network(settings, facts).to(META).train()
    network.transformer.recomputes = chosen.optimisation.recompute
    one: Any = windows(facts, rows, steps)
    learned = "window"
    if method == "ad":
        one = windows(facts, rows, 2 * chosen.context)
    elif method == "dpt":
        one, learned = dpt.Batch(windows(facts, rows, steps + 1), windows(facts, rows, chosen.queries)), "queries"
    elif method == "radt":
        read = chosen.retrieval.places * chunk_settings(memory_of(settings)).value_length
        one = Batch(one, windows(facts, rows, read), torch.empty(rows, dtype=torch.bool, device=META))

    def learned_of(one: Any) -> Experience:
        found: Experience = getattr(one, learned, one)
        return found

    def loss_of(one: Any) -> tuple[Tensor, dict[str, Tensor]]:
        if method == "radt":
            return radt_loss(network, one, chosen.return_loss, settings.environment.returns)
        predicted_BTA = dpt.logits_of(network, one) if method == "dpt" else network(one)[0]
        return action_loss(predicted_BTA, learned_of(one))

    kept = sum(4 * parameter.numel() for parameter in network.parameters())
    with AsOnAGPU(), Alive() as alive:
        optimiser = make_optimiser(network, chosen.optimisation)
        Gradients(loss_of, chosen.optimisation, META, learned_of).add(one)
        optimiser.step()
    return kept + alive.peak


def facts_known(settings: Settings) -> Facts:
    """Facts of an environment, from the table where its package may be missing."""
    if settings.environment.name not in FACTS:
        return facts_of(settings.environment)
    size, actions, horizon, numbers = FACTS[settings.environment.name]
    return Facts(size, (), actions, horizon, action_size=numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--micro-batches", type=int)
    parser.add_argument("--recompute", action="store_true", default=None)
    parser.add_argument("--worlds", nargs="*", default=WORLDS)
    given = parser.parse_args()
    print("| world | " + " | ".join(METHODS) + " |\n|---|" + "---|" * len(METHODS))
    for world in given.worlds:
        cells = []
        for method in METHODS:
            settings = resolve("paper", world, method, 42)
            chosen = settings.method.hyperparameters
            update = {"micro_batches": given.micro_batches, "recompute": given.recompute}
            update = {name: value for name, value in update.items() if value is not None}
            optimisation = chosen.optimisation.model_copy(update=update)
            changed = chosen.model_copy(update={"optimisation": optimisation})
            settings = settings.model_copy(
                update={"method": settings.method.model_copy(update={"hyperparameters": changed})}
            )
            cells.append(f"{peak_bytes(settings, facts_known(settings)) / 1e9:.1f}")
        print(f"| {world} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
