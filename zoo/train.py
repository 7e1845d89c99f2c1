"""Train the embedded zoo: every network of recipes.py, one safetensors file each.

In:  Fashion-MNIST's training files (--fashion); everything else is drawn by tasks.py
Out: --out/NAME.safetensors, whose metadata say how to build and feed the network and how well it learnt its task
Nothing here knows the targets that networks will be ranked on, and nothing here looks at them.

    python zoo/train.py --fashion FOLDER --out src/modelhound/models/weights --device cuda
    python zoo/train.py --out src/modelhound/models/weights --table
"""

import argparse
import json
import multiprocessing
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from modelhound.models.zoo_architectures import ZOO_ARCHITECTURES, build_zoo_network
from recipes import RECIPES, Recipe
from tasks import Task, make_task

BYTE_BUDGET = 7_800_000  # all files together; the package promises less than 8 MB
BATCH = 256
QUICK_IMAGES, QUICK_STEPS, QUICK_BATCH = 96, 4, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every recipe of one call shares; plain enough to be sent to another process."""

    out: Path
    tasks: Path  # where each task lies as NAME.npz
    fashion: Path | None
    device: str
    seed: int
    quick: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The normalisation a network expects, the same three numbers twice."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def main() -> None:
    options = _parse()
    if options.table:
        print(_table(options.out))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    recipes = _choose(options.only, options.out)
    device = options.device
    jobs = options.jobs or (4 if device.startswith("cuda") and not options.quick else 1)
    started = time.perf_counter()
    with TemporaryDirectory() as folder:
        job = Job(
            out=options.out,
            tasks=Path(folder),
            fashion=options.fashion,
            device=device,
            seed=options.seed,
            quick=options.quick,
        )
        needed = sorted({recipe.task for recipe in recipes})
        if jobs == 1:
            _run(map, job, needed, recipes)
        else:  # these networks are so small that one process alone leaves a GPU waiting for its next command
            with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
                _run(pool.map, job, needed, recipes)
    total = sum(path.stat().st_size for path in options.out.glob("*.safetensors"))
    print(f"{len(recipes)} networks in {time.perf_counter() - started:.0f} s; the folder holds {total / 1e6:.2f} MB")
    if total > BYTE_BUDGET:
        raise SystemExit(f"cannot ship {total} bytes: expected at most {BYTE_BUDGET}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the networks that ship with modelhound.")
    parser.add_argument("--fashion", type=Path, help="folder with Fashion-MNIST's train-*.gz files")
    parser.add_argument("--out", type=Path, required=True, help="folder for the safetensors files")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--only", action="append", metavar="NAME", help="train only this network; may be repeated")
    parser.add_argument("--jobs", type=int, help="networks trained at the same time (4 on cuda, else 1)")
    parser.add_argument("--quick", action="store_true", help="a few steps on a few images, to try the script")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="train nothing; print --out as a Markdown table")
    return parser.parse_args()


def _choose(only: list[str] | None, out: Path) -> tuple[Recipe, ...]:
    """The recipes asked for, and the parents of theirs that are not there yet."""
    known = {recipe.name: recipe for recipe in RECIPES}
    chosen = set(only or known)
    for name in sorted(chosen):
        if name not in known:
            raise SystemExit(f"cannot train {name!r}: expected one of {', '.join(known)}")
    for recipe in reversed(RECIPES):  # children stand after their parents
        if recipe.name in chosen and recipe.parent and not (out / f"{recipe.parent}.safetensors").exists():
            chosen.add(recipe.parent)
    return tuple(recipe for recipe in RECIPES if recipe.name in chosen)


def _run(run_all: Callable[..., Iterable[str]], job: Job, tasks: list[str], recipes: tuple[Recipe, ...]) -> None:
    """Make the tasks, then train in waves: a network waits only for its parent's wave."""
    for line in run_all(partial(store_task, job), tasks):
        print(line, flush=True)
    done: set[str] = set()
    names = {recipe.name for recipe in recipes}
    while len(done) < len(recipes):
        wave = [r for r in recipes if r.name not in done and (r.parent in done or r.parent not in names)]
        wave.sort(key=lambda recipe: -recipe.num_steps)  # the longest first, so that none is left running alone
        for line in run_all(partial(train_recipe, job), wave):
            print(line, flush=True)
        done |= {recipe.name for recipe in wave}


def store_task(job: Job, name: str) -> str:
    """Make a task once for all networks that learn it."""
    started = time.perf_counter()
    task = make_task(name, seed=job.seed, fashion=job.fashion, limit=QUICK_IMAGES if job.quick else None)
    np.savez(
        job.tasks / f"{name}.npz",
        images=task.images,
        labels=task.labels,
        class_names=np.array(task.class_names),
        num_held_out=task.num_held_out,
        may_flip=task.may_flip,
    )
    return f"task {name}: {len(task.labels)} images in {time.perf_counter() - started:.1f} s"


def load_task(job: Job, name: str) -> Task:
    with np.load(job.tasks / f"{name}.npz") as stored:
        return Task(
            name=name,
            images=stored["images"],
            labels=stored["labels"],
            class_names=tuple(stored["class_names"].tolist()),
            num_held_out=int(stored["num_held_out"]),
            may_flip=bool(stored["may_flip"]),
        )


# --- one network ---------------------------------------------------------------------------------------------------


def train_recipe(job: Job, recipe: Recipe) -> str:
    """Train one network and write its file."""
    started = time.perf_counter()
    if job.quick:
        torch.set_num_threads(1)  # on a busy machine, threads that wait for each other take longer than the work
    seed = zlib.crc32(f"{job.seed}/{recipe.name}".encode())  # the same weights in whatever order networks are trained
    torch.manual_seed(seed)
    task = load_task(job, recipe.task)
    side = ZOO_ARCHITECTURES[recipe.architecture].input_size
    network: nn.Module = build_zoo_network(recipe.architecture, len(task.class_names))
    if recipe.parent:
        _inherit(network, job.out / f"{recipe.parent}.safetensors")
        freeze(network, recipe.frozen)
    scale = _scale(job, recipe, task)
    images = resize(task, side, recipe.interpolation, job.device)
    labels = torch.from_numpy(task.labels).to(job.device)
    split = len(labels) - task.num_held_out
    network.to(job.device)
    fit(network, recipe, images[:split], labels[:split], scale=scale, may_flip=task.may_flip, quick=job.quick)
    accuracy = measure(network, images[split:], labels[split:], scale)
    facts = {
        "architecture": recipe.architecture,
        "family": recipe.architecture.split("_")[0],
        "num_classes": str(len(task.class_names)),
        "classes": json.dumps(task.class_names),
        "num_parameters": str(sum(parameter.numel() for parameter in network.parameters())),
        "task": recipe.task,
        "parent": recipe.parent or "",
        "frozen": json.dumps(recipe.frozen),
        "accuracy": f"{accuracy:.4f}",
        "seed": str(job.seed),
        "input_size": json.dumps([side, side]),
        "mean": json.dumps(scale.mean),
        "std": json.dumps(scale.std),
        "interpolation": recipe.interpolation,
        "crop_fraction": "1.0",
        "licence": "Apache-2.0",
        "trained_with": f"torch {torch.__version__.split('+')[0]}, {job.device.split(':')[0]}",
    }
    _write(job.out, recipe, network, facts)
    seconds = time.perf_counter() - started
    return f"{recipe.name}: {accuracy:.1%} of {task.num_held_out} held-out images right, {seconds:.0f} s"


def _inherit(network: nn.Module, parent: Path) -> None:
    """Take over every tensor of the parent but its classifier, which answers another question."""
    classifier = network.get_classifier()
    (prefix,) = (name for name, module in network.named_modules() if module is classifier)
    inherited = {key: tensor for key, tensor in load_file(parent).items() if not is_under(key, (prefix,))}
    missing, unexpected = network.load_state_dict(inherited, strict=False)
    if unexpected or any(not is_under(key, (prefix,)) for key in missing):
        raise SystemExit(f"cannot copy {parent.stem!r}: expected the same architecture, train it again")


def is_under(key: str, prefixes: Iterable[str]) -> bool:
    """Whether a tensor or module is one of these or lies inside one."""
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def freeze(network: nn.Module, frozen: tuple[str, ...]) -> None:
    """Exclude these parts from training."""
    for prefix in frozen:
        if not any(is_under(key, (prefix,)) for key in network.state_dict()):
            raise SystemExit(f"cannot freeze {prefix!r}: expected the beginning of a tensor's name")
    for key, parameter in network.named_parameters():
        parameter.requires_grad_(not is_under(key, frozen))


def _set_training(network: nn.Module, frozen: tuple[str, ...]) -> None:
    """Training mode for what is trained only: BatchNorm would go on counting in a frozen trunk."""
    network.train()
    for name, module in network.named_modules():
        if is_under(name, frozen):
            module.eval()


def _scale(job: Job, recipe: Recipe, task: Task) -> Scale:
    """A parent's own, 0.5 and 0.5, or what the task's training images have."""
    if recipe.parent:
        with safe_open(job.out / f"{recipe.parent}.safetensors", framework="pt") as file:
            facts = file.metadata()
        return Scale(mean=tuple(json.loads(facts["mean"])), std=tuple(json.loads(facts["std"])))
    if recipe.scale == "half":
        return Scale(mean=(0.5,) * 3, std=(0.5,) * 3)
    pixels = task.images[: -task.num_held_out].reshape(-1, task.images.shape[-1]) / np.float32(255)
    mean, std = ([round(float(value), 4) for value in f(pixels, axis=0, dtype=np.float64)] for f in (np.mean, np.std))
    return Scale(mean=tuple(mean * (3 // len(mean))), std=tuple(std * (3 // len(std))))


def resize(task: Task, side: int, interpolation: str, device: str) -> Tensor:
    """All images at the network's input size, still bytes, still one channel where they are grey."""
    parts = []
    for part in torch.from_numpy(task.images).split(4096):
        pixels = part.to(device).permute(0, 3, 1, 2).float()
        pixels = F.interpolate(pixels, size=(side, side), mode=interpolation, antialias=True, align_corners=False)
        parts.append(pixels.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(parts)


def fit(
    network: nn.Module, recipe: Recipe, images: Tensor, labels: Tensor, *, scale: Scale, may_flip: bool, quick: bool
) -> None:
    """AdamW under one cycle of the learning rate, as many steps as the recipe says."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": 0.03},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    num_steps, size = (QUICK_STEPS, QUICK_BATCH) if quick else (recipe.num_steps, BATCH)
    optimiser = torch.optim.AdamW(groups, lr=recipe.peak_rate, fused=images.is_cuda)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=recipe.peak_rate, total_steps=num_steps, pct_start=0.15, cycle_momentum=False
    )
    torch.set_float32_matmul_precision("high")
    _set_training(network, recipe.frozen)
    order = torch.empty(0, dtype=torch.long, device=images.device)
    for step in range(num_steps):
        if len(order) < size:
            order = torch.cat([order, torch.randperm(len(images), device=images.device)])
        chosen, order = order[:size], order[size:]
        batch = normalise(_jitter(images[chosen], may_flip), scale)
        loss = F.cross_entropy(network(batch), labels[chosen])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        cycle.step()
        if (step + 1) % 500 == 0:  # reading the loss waits for the device, so not at every step
            print(f"  {recipe.name}: step {step + 1} of {num_steps}, loss {loss.item():.3f}", flush=True)


def _jitter(images: Tensor, may_flip: bool) -> Tensor:
    """Shift each image by up to a tenth of its side, and mirror half of them where that keeps the label."""
    num, channels, side, _ = images.shape
    reach = side // 10
    padded = F.pad(images.float(), (reach,) * 4, mode="replicate")
    steps = torch.arange(side, device=images.device)
    rows, columns = (steps + torch.randint(0, 2 * reach + 1, (num, 1), device=images.device) for _ in range(2))
    if may_flip:
        mirrored = torch.rand(num, 1, device=images.device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    one = torch.arange(num, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[one, channel, rows[:, None, :, None], columns[:, None, None, :]]


def normalise(images: Tensor, scale: Scale) -> Tensor:
    """From bytes to what the network expects, grey repeated to three channels."""
    mean, std = (torch.tensor(part, device=images.device).reshape(1, 3, 1, 1) for part in (scale.mean, scale.std))
    return (images.float().expand(-1, 3, -1, -1) / 255 - mean) / std


@torch.inference_mode()
def measure(network: nn.Module, images: Tensor, labels: Tensor, scale: Scale) -> float:
    """The share of images that the network gets right."""
    network.eval()
    right = [
        (network(normalise(some, scale)).argmax(1) == truth).float()
        for some, truth in zip(images.split(BATCH), labels.split(BATCH), strict=True)
    ]
    return float(torch.cat(right).mean())


def _write(out: Path, recipe: Recipe, network: nn.Module, facts: dict[str, str]) -> None:
    """Write the file whole or not at all, once the frozen part is known to be the parent's."""
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in network.state_dict().items()}
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise SystemExit(f"cannot keep {recipe.name!r}: expected finite weights, training diverged")
    if recipe.parent:
        parents = load_file(out / f"{recipe.parent}.safetensors")
        moved = [key for key in tensors if is_under(key, recipe.frozen) and not torch.equal(tensors[key], parents[key])]
        if moved:
            raise SystemExit(f"cannot keep {recipe.name!r}: expected a frozen trunk, these tensors moved: {moved}")
    unfinished = out / f"{recipe.name}.safetensors.part"
    save_file(tensors, unfinished, metadata=facts)
    unfinished.chmod(0o644)  # safetensors keeps new files to their owner; these are shipped
    unfinished.replace(out / f"{recipe.name}.safetensors")


# --- the table -----------------------------------------------------------------------------------------------------


def _table(folder: Path) -> str:
    """What is in the folder, as Markdown; read from the files alone."""
    lines = [
        "| name | family | parameters | input | source task | parent | layers frozen | held-out accuracy |",
        "|---|---|---:|---:|---|---|---:|---:|",
    ]
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            facts = file.metadata()
            layers = [key for key in file.keys() if len(file.get_slice(key).get_shape()) > 1]  # noqa: SIM118
        frozen = json.loads(facts["frozen"])
        share = sum(is_under(layer, frozen) for layer in layers) / len(layers)
        side = json.loads(facts["input_size"])[0]
        lines.append(
            f"| {path.stem} | {facts['family']} | {int(facts['num_parameters']):,} | {side} px | {facts['task']} "
            f"| {facts['parent'] or '–'} | {f'{share:.0%}' if frozen else '–'} | {float(facts['accuracy']):.1%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
