"""The networks that quality.py lets compete: embedded ones, real ones that packages carry, random ones, and derivatives.

In:  a target, a folder that derivatives may be kept in, a device
Out: twenty or more Candidates
Nothing here knows how they are ranked. Derivatives are made here: a real network fine-tuned on another task, all of it or its
upper half, so that relatives compete as they do in a hub. No candidate has learned from an item of a target; some embedded
networks know other garments of the same kind.
Real networks come from where `quality_packing` left them.
"""

import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from modelhound.compat import import_transformers
from modelhound.data import Dataset, Preprocessing, open_dataset
from modelhound.finals.held_items import HeldItems
from modelhound.models import ModelRef, Network, find_models, source_of
from modelhound.settings import ModelSettings
from quality_targets import ROOT, TEXTS, Target

PACKED = ROOT / ".real.quality" / "networks"  # ignored by git; what a call needs of it is carried along by name
HIGH_NOTCHES, TEXT_NOTCHES = (1, 2), (0, 1)  # on so few images the usual rate was never the best (zoo_truth_*)
SLOW = ("resnet-textures",)  # more than twice as long to train as any other of the embedded small ones
REAL = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "mobilenetv2")
PARENTS = {"lite0": "efficientnet_lite0", "mobilenetv2": "mobilenetv2"}
ZOO = ROOT / "src" / "modelhound" / "models" / "weights"
PUBLISHED = {  # on ImageNet; longer names first
    "efficientnet_lite0": 0.748,
    "efficientnet_lite1": 0.766,
    "efficientnet_lite2": 0.775,
    "lite0": 0.748,
    "mobilenetv2": 0.719,
    "minilm": 1.0,  # nothing comparable is published: its relatives count alike, and random ones not at all
}
QUICKEST = (  # to train, first, and a few of every kind among them; the last fits every name
    *("resmlp", "mixer", "convnext-", "random convnext", "mobilenet-glyphs", "resnet-garments", "vit-rotation"),
    *("mobilenet-rotation", "resnet-glyphs", "mobilenet-", "random", "vit", "resnet", ""),
)
DRAWN_TASKS = ("glyphs", "shapes", "textures")
TASK_ITEMS, TASK_BATCH = 2400, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One network that might be fine-tuned."""

    name: str
    model: str
    settings: ModelSettings
    notches: tuple[int, ...]
    """Learning rates that the truth is the best of, as `analysis.trials` counts them."""
    published: float = 0.0
    """The accuracy that its makers tell, of whatever task it was made for; a derivative has its parent's, a random one none."""


def find_candidates(target: Target, folder: Path, device: str, *, small: bool) -> tuple[Candidate, ...]:
    """All that can compete for this target; with `small`, only what takes seconds to train."""
    if target.dataset.modality == "text":
        return tuple(_text_candidates(target, folder, device))
    found = _image_candidates(folder, device, small=small)
    return tuple(sorted(found, key=lambda each: next(place for place, key in enumerate(QUICKEST) if key in each.name)))


# --- images --------------------------------------------------------------------------------------------------------


def _image_candidates(folder: Path, device: str, *, small: bool) -> Iterator[Candidate]:
    for model in map(str, find_models(["zoo:*"])):
        name = model.partition(":")[2]
        if "efficientnet" not in name and not (small and name in SLOW):
            yield _candidate(name, model, HIGH_NOTCHES)
    for model in ("zoo:resnet-glyphs", "zoo:convnext-textures", "zoo:mobilenet-glyphs"):
        settings = ModelSettings(models=(model,), weights="random")
        name = f"random {model.partition(':')[2].partition('-')[0]}"
        yield Candidate(name=name, model=model, settings=settings, notches=HIGH_NOTCHES)
    if small:
        return
    for name in REAL:
        if (PACKED / name).is_dir():
            yield _candidate(name, f"file:{PACKED / name}", HIGH_NOTCHES)
    parents = {name: f"file:{PACKED / folder}" for name, folder in PARENTS.items() if (PACKED / folder).is_dir()}
    for parent, model in parents.items():
        for task in DRAWN_TASKS:
            yield _derive(f"{parent}-{task}", model, task, folder, device, frozen=0.0, steps=120)
    for task in ("shapes", "glyphs") if "lite0" in parents else ():
        yield _derive(f"lite0-{task}-upper", parents["lite0"], task, folder, device, frozen=0.5, steps=120)


def _candidate(name: str, model: str, notches: tuple[int, ...]) -> Candidate:
    published = next((value for key, value in PUBLISHED.items() if name.startswith(key)), 0.0)
    if not published and model.startswith("zoo:"):
        with safe_open(ZOO / f"{model.partition(':')[2]}.safetensors", framework="numpy") as file:
            published = float((file.metadata() or {}).get("accuracy", 0.0))
    settings = ModelSettings(models=(model,))
    return Candidate(name=name, model=model, settings=settings, notches=notches, published=published)


def _drawn_task(task: str) -> Dataset:
    """One of the tasks that the zoo was trained on, as a folder of pictures."""
    folder = Path(tempfile.gettempdir()) / f"hound-task-{task}"
    if not folder.is_dir():
        sys.path.insert(0, str(ROOT / "zoo"))
        specification = importlib.util.spec_from_file_location("zoo_tasks", ROOT / "zoo" / "tasks.py")
        assert specification is not None and specification.loader is not None  # noqa: PT018
        tasks = importlib.util.module_from_spec(specification)
        sys.modules["zoo_tasks"] = tasks
        specification.loader.exec_module(tasks)
        made = tasks.make_task(task, seed=7, limit=TASK_ITEMS)
        part = folder.with_name(f"{folder.name}.part")
        for place, (image, label) in enumerate(zip(made.images, made.labels, strict=True)):
            own = part / str(made.class_names[label])
            own.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.squeeze()).convert("RGB").save(own / f"{place:05}.png")
        part.rename(folder)
    return open_dataset(str(folder))


# --- texts ---------------------------------------------------------------------------------------------------------


def _text_candidates(target: Target, folder: Path, device: str) -> Iterator[Candidate]:
    minilm = PACKED / "minilm"
    if not minilm.is_dir():
        raise SystemExit(f"cannot open {minilm}: expected the packed network, run quality.py pack where .real is")
    yield _candidate("minilm", f"file:{minilm}", TEXT_NOTCHES)
    for depth in range(1, 6):
        yield _rebuilt(f"minilm-first{depth}", minilm, folder, TEXT_NOTCHES, depth=depth)
    for redrawn in range(1, 4):
        yield _rebuilt(f"minilm-top{redrawn}-redrawn", minilm, folder, TEXT_NOTCHES, redrawn=redrawn)
    for seed in range(2):
        yield _rebuilt(f"random-minilm{seed}", minilm, folder, HIGH_NOTCHES, redrawn=99, seed=seed)
    yield _rebuilt("bert-small-random", minilm, folder, HIGH_NOTCHES, redrawn=99, width=128, depth=2)
    others = [path.stem for path in sorted(TEXTS.glob("*.csv")) if not target.name.startswith(path.stem)]
    for task in others:
        for steps in (60, 240):
            yield _derive(f"minilm-{task}{steps}", f"file:{minilm}", task, folder, device, frozen=0.0, steps=steps)
        yield _derive(f"minilm-{task}-upper", f"file:{minilm}", task, folder, device, frozen=0.5, steps=120)
        third = _rebuilt("minilm-first3", minilm, folder, TEXT_NOTCHES, depth=3)
        yield _derive(f"minilm-first3-{task}", third.model, task, folder, device, frozen=0.0, steps=120)


def _rebuilt(
    name: str,
    parent: Path,
    folder: Path,
    notches: tuple[int, ...],
    *,
    depth: int | None = None,
    redrawn: int = 0,
    width: int | None = None,
    seed: int = 0,
) -> Candidate:
    """MiniLM with fewer layers, with its upper ones drawn anew, or all of it."""
    made = folder / name
    if not made.is_dir():
        transformers = import_transformers()
        config = transformers.AutoConfig.from_pretrained(parent)
        if depth is not None:
            config.num_hidden_layers = depth
        if width is not None:
            config.hidden_size, config.intermediate_size, config.num_attention_heads = width, 4 * width, 4
        torch.manual_seed(seed)
        drawn = transformers.AutoModel.from_config(config).float()
        if width is None and redrawn < config.num_hidden_layers:
            kept = config.num_hidden_layers - redrawn
            known = load_network(f"file:{parent}").module.state_dict()
            drawn.load_state_dict({key: each for key, each in known.items() if _layer(key) < kept}, strict=False)
        part = made.with_name(f"{name}.part")
        _copy_texts_files(parent, part)
        drawn.save_pretrained(part)
        part.rename(made)
    return _candidate(name, f"file:{made}", notches)


def _layer(key: str) -> int:
    """Which layer of a BERT a tensor belongs to; the embeddings come before the first."""
    parts = key.split(".")
    return int(parts[parts.index("layer") + 1]) if "layer" in parts else -1


def _copy_texts_files(parent: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in parent.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copyfile(file, folder / file.name)


# --- derivatives ---------------------------------------------------------------------------------------------------


def _derive(name: str, parent: str, task: str, folder: Path, device: str, *, frozen: float, steps: int) -> Candidate:
    """The parent after some steps on another task; the lower share `frozen` of its tensors does not move."""
    made, is_text = folder / name, task not in DRAWN_TASKS
    if not made.is_dir():
        dataset = open_dataset(str(TEXTS / f"{task}.csv"), task="classification") if is_text else _drawn_task(task)
        network = load_network(parent)
        _fine_tune(network, dataset, device, frozen=frozen, steps=steps)
        part = made.with_name(f"{name}.part")
        if is_text:
            _copy_texts_files(Path(parent.partition(":")[2]), part)
            _save_tensors(network, part)
        else:
            save_timm(network, part)
        part.rename(made)
    return _candidate(name, f"file:{made}", TEXT_NOTCHES if is_text else HIGH_NOTCHES)


def load_network(model: str) -> Network:
    source, _, name = model.partition(":")
    found = source_of(ModelRef(source, name))
    network = found.build(name, found.read_weights(name), ModelSettings(models=(model,), tokens=64))
    network.module.float()
    return network


def _fine_tune(network: Network, dataset: Dataset, device: str, *, frozen: float, steps: int) -> None:
    module = network.module.to(device).train()
    parameters = list(module.parameters())
    for parameter in parameters[: int(frozen * len(parameters))]:
        parameter.requires_grad_(False)
    held = HeldItems(dataset, device)
    targets = torch.from_numpy(dataset.targets)
    generator = np.random.default_rng(0)
    head: Any = None
    optimiser: Any = None
    for step in range(steps):
        chosen = generator.integers(0, len(dataset), TASK_BATCH)
        moved = held.take(network.preprocessing, chosen, targets[torch.from_numpy(chosen)])
        with torch.autocast(device.partition(":")[0], dtype=torch.bfloat16, enabled=device != "cpu"):
            features = network.extract(moved.inputs)
        if head is None:
            torch.manual_seed(0)
            head = torch.nn.Linear(features.shape[1], len(dataset.class_names)).to(device)
            learning = [each for each in (*parameters, *head.parameters()) if each.requires_grad]
            rate = 3e-4 if dataset.modality == "image" else 1e-4
            optimiser = torch.optim.AdamW(learning, lr=rate, weight_decay=0.01)
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 10) * (1 - step / steps)
        loss = torch.nn.functional.cross_entropy(head(features.float()), moved.targets)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    module.eval().to("cpu")


def save_timm(network: Network, folder: Path) -> None:
    """In the layout of the hub, as timm's own networks lie there."""
    folder.mkdir(parents=True, exist_ok=True)
    module, form = network.module, network.preprocessing
    assert isinstance(form, Preprocessing)
    known: dict[str, Any] = dict(module.pretrained_cfg)  # type: ignore[arg-type]
    config = {
        "architecture": known["architecture"],
        "num_classes": 1000,
        "pretrained_cfg": {
            **{key: known[key] for key in ("classifier", "first_conv", "pool_size") if known.get(key)},
            "input_size": [3, *form.input_size],
            "interpolation": form.interpolation,
            "crop_pct": form.crop_fraction,
            "crop_mode": form.crop_mode,
            "mean": list(form.mean),
            "std": list(form.std),
            "num_classes": 1000,
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _save_tensors(network, folder)


def _save_tensors(network: Network, folder: Path) -> None:
    tensors = {name: each.detach().contiguous().clone() for name, each in network.module.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def names_of(candidates: Sequence[Candidate]) -> dict[str, Candidate]:
    """By name, in order."""
    return {each.name: each for each in candidates}
