"""What it costs to bring photographs to models: once for each model, as the plain path does, or once for all of them.

Photographs of 500 x 375 and some 70 KB are made in a temporary folder. Contestants take turns, round after round, and of each
the fastest round counts. All deliver float32 batches, normalised, on the device.

    python benchmarks/decoding.py [--json] [--items N] [--repeats N] [--device auto|cpu|cuda]
    python benchmarks/decoding.py --check     how far the device's pixels are from the CPU's; exits with 1 if too far
"""

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from modelhound.data import Dataset, Preprocessing, load_batches, open_dataset
from modelhound.data.decode.decoded import decode
from modelhound.data.decode.decoders import Choice, find_decoders
from modelhound.data.decode.resizing import resize_and_crop
from modelhound.data.preprocessing import Variant
from modelhound.meter import count_cores, describe_machine, resolve_device, seconds_now
from modelhound.records import to_plain

SIZE, QUALITY, NUM_PICTURES = (500, 375), 90, 40
BATCH = 64
PLAIN = "plain loader"
TOLERANCE = 1.0  # grey levels, on average over the pixels of an image set


def form(size: int, interpolation: str, crop_fraction: float, crop_mode: str = "center") -> Preprocessing:
    return Preprocessing(
        input_size=(size, size),
        interpolation=interpolation,
        crop_fraction=crop_fraction,
        crop_mode=crop_mode,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )


FORMS = [
    form(224, "bicubic", 0.875),
    form(224, "bilinear", 0.875),
    form(224, "bicubic", 0.95),
    form(288, "bicubic", 1.0, "squash"),
]


def make_photo(size: tuple[int, int], seed: int) -> Image.Image:
    """Soft shapes, fine texture and a little noise of colour: as large as a photograph when compressed."""
    generator = np.random.default_rng(seed)
    row, column = np.mgrid[0 : size[1], 0 : size[0]]
    angle, wave = generator.uniform(0, 3, 3), generator.uniform(20, 90, 3)
    colours = [128 + 90 * np.sin((row * np.cos(a) + column * np.sin(a)) / w) for a, w in zip(angle, wave, strict=True)]
    texture = generator.normal(0, 9.5, (size[1], size[0], 1)) + generator.normal(0, 2, (size[1], size[0], 3))
    return Image.fromarray((np.stack(colours, -1) + texture).clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def write(folder: Path, files: list[bytes], num_items: int, suffix: str = "jpg") -> Dataset:
    for number in range(num_items):
        path = folder / "ab"[number % 2] / f"{number:05}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[number % len(files)])
    return open_dataset(str(folder))


def load_plainly(dataset: Dataset, forms: list[Preprocessing], device: str) -> None:
    for each in forms:
        for batch in load_batches(dataset, each, batch=BATCH, workers=min(16, count_cores()), device=device):
            batch.inputs_on(device)


def load_once(dataset: Dataset, forms: list[Preprocessing], device: str, choice: Choice | None, **options: Any) -> None:
    """`device` is where pixels are decoded and kept; batches end where `goal` says, which is there too unless told."""
    goal = options.pop("goal", device)
    chunk = decode(dataset, range(len(dataset)), forms, device=device, choice=choice, **options)
    for each in forms:
        for start in range(0, len(chunk), BATCH):
            chunk.inputs(each, start, min(start + BATCH, len(chunk))).to(goal)


@dataclass(frozen=True)
class InProcesses:
    """The same work by torch's worker processes, which send pixels through shared memory."""

    dataset: Dataset
    forms: list[Preprocessing]
    choice: Choice | None

    def __len__(self) -> int:
        return -(-len(self.dataset) // BATCH)

    def __getitem__(self, number: int) -> list[torch.Tensor]:
        rows = range(number * BATCH, min((number + 1) * BATCH, len(self.dataset)))
        return list(decode(self.dataset, rows, self.forms, threads=1, choice=self.choice).pixels.values())


def load_by_processes(dataset: Dataset, forms: list[Preprocessing], choice: Choice | None, goal: str) -> None:
    from modelhound.data.normalising import normalise

    items: Any = InProcesses(dataset, forms, choice)
    for blocks in torch.utils.data.DataLoader(items, batch_size=None, num_workers=min(16, count_cores())):
        for each, pixels in zip(forms, blocks, strict=True):
            normalise(pixels, each, torch.float32, torch.contiguous_format).to(goal)


def list_contestants(
    dataset: Dataset, device: str, on_host: Choice | None, on_device: Choice | None
) -> Iterator[tuple[str, int, Callable[[], None]]]:
    for forms in (FORMS[:1], FORMS):
        num = len(forms)
        yield PLAIN, num, lambda forms=forms: load_plainly(dataset, forms, device)
        yield "once, threads", num, lambda forms=forms: load_once(dataset, forms, "cpu", on_host, goal=device)
        yield "once, processes", num, lambda forms=forms: load_by_processes(dataset, forms, on_host, device)
        if device != "cpu":
            yield "once, on the device", num, lambda forms=forms: load_once(dataset, forms, device, on_device)
            yield (
                "once, on the device, kept on the host",
                num,
                lambda forms=forms: load_once(dataset, forms, device, on_device, keep_on_host=True),
            )


def synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def take_turns(contestants: dict[Any, Callable[[], None]], repeats: int, device: str) -> dict[Any, float]:
    """Seconds of each contestant's fastest round."""
    best: dict[Any, float] = {}
    for _ in range(repeats):
        for key, run in contestants.items():
            synchronise(device)
            start = seconds_now()
            run()
            synchronise(device)
            best[key] = min(best.get(key, float("inf")), seconds_now() - start)
    return best


def measure_loading(dataset: Dataset, device: str, repeats: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    # Libraries load, decoders are tried and memory is taken on first use; choosing is timed apart.
    load_once(dataset, FORMS, device, None)
    some = range(0, len(dataset), 10)
    on_host = decode(dataset, some, FORMS[:1]).choice
    on_device = decode(dataset, some, FORMS[:1], device=device).choice
    synchronise(device)
    start = seconds_now()
    decode(dataset, range(1), FORMS[:1], device=device)
    chosen = {"seconds": seconds_now() - start, "decoder": on_device.decoder.name if on_device else None}
    listed = list_contestants(dataset, device, on_host, on_device)
    contestants = {(name, num): run for name, num, run in listed}
    best = take_turns(contestants, repeats, device)
    return [
        {
            "contestant": name,
            "forms": num,
            "seconds": seconds,
            "items_per_second": len(dataset) / seconds,
            "times_plain": best[PLAIN, num] / seconds,
        }
        for (name, num), seconds in best.items()
    ], chosen


def measure_decoders(files: list[bytes], device: str, repeats: int) -> list[dict[str, Any]]:
    many = (files * 8)[:256]
    cores = min(16, count_cores())
    contestants: dict[Any, Callable[[], None]] = {}
    with ThreadPoolExecutor(cores) as pool:
        for each in find_decoders(device):
            if each.device == "cpu":
                contestants[each.name, 1] = lambda each=each: each.decode(files)
                blocks = [many[start : start + 8] for start in range(0, len(many), 8)]
                contestants[each.name, cores] = lambda each=each, blocks=blocks: list(pool.map(each.decode, blocks))
            else:
                contestants[each.name, 1] = lambda each=each: each.decode(many)
        best = take_turns(contestants, repeats + 1, device)
    on_device = {each.name for each in find_decoders(device) if each.device != "cpu"}
    return [
        {
            "decoder": name,
            "threads": threads,
            "files_per_second": (len(many) if threads > 1 or name in on_device else len(files)) / seconds,
        }
        for (name, threads), seconds in best.items()
    ]


def measure_resizing(device: str, repeats: int) -> list[dict[str, Any]]:
    """Of 128 images of one size, on the device: by our matrices and by torch's own antialiased resize."""
    pixels = np.stack([np.asarray(make_photo(SIZE, seed)) for seed in range(4)])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(device).repeat(32, 1, 1, 1)
    variant = Variant.of(FORMS[0])

    def by_torch() -> None:
        resized = torch.nn.functional.interpolate(images.float(), (256, 341), mode="bicubic", antialias=True)
        resized[:, :, 16:240, 58:282].round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()

    contestants: dict[Any, Callable[[], Any]] = {
        "matrices, fp64": lambda: resize_and_crop(images, variant, precision=torch.float64),
        "matrices, fp32": lambda: resize_and_crop(images, variant, precision=torch.float32),
        "interpolate, fp32": by_torch,
    }
    best = take_turns(contestants, 2 * repeats + 1, device)
    return [{"resize": name, "images_per_second": len(images) / seconds} for name, seconds in best.items()]


def kinds_of_files() -> dict[str, tuple[list[bytes], str]]:
    photos = [make_photo(SIZE, seed) for seed in range(8)]
    turned = Image.Exif()
    turned[0x0112] = 6
    sizes = [(640, 480), (333, 500), (97, 61), (224, 224), (1200, 801), (30, 500)]
    return {
        "4:2:0": ([encode(each, quality=QUALITY) for each in photos], "jpg"),
        "4:2:2": ([encode(each, quality=QUALITY, subsampling=1) for each in photos], "jpg"),
        "4:4:4": ([encode(each, quality=QUALITY, subsampling=0) for each in photos], "jpg"),
        "progressive": ([encode(each, quality=QUALITY, progressive=True) for each in photos], "jpg"),
        "grey": ([encode(each.convert("L"), quality=QUALITY) for each in photos], "jpg"),
        "CMYK": ([encode(each.convert("CMYK"), quality=QUALITY) for each in photos[:2]], "jpg"),
        "turned by EXIF": ([encode(each, quality=QUALITY, exif=turned) for each in photos], "jpg"),
        "many sizes": ([encode(make_photo(size, 1), quality=QUALITY) for size in sizes], "jpg"),
        "PNG": ([encode(each, "PNG") for each in photos[:2]], "png"),
    }


def check(device: str) -> bool:
    """Print how far the device's pixels are from the CPU's, for every kind of file; whether all are near enough."""
    print(f"device {device}; decoders: {', '.join(each.name for each in find_decoders(device))}\n")
    for each in find_decoders(device):
        if each.device != "cpu":
            kinds = sorted(map(str, each.trusted))  # type: ignore[attr-defined]
            print(f"{each.name} is trusted with {len(kinds)} of 8 kinds:\n  " + "\n  ".join(kinds) + "\n")
    print(
        "| files | decoder | mean difference | largest | share of pixels over 2 | inputs, mean |\n|---|---|---|---|---|---|"
    )
    near = True
    with tempfile.TemporaryDirectory() as folder:
        for kind, (files, suffix) in kinds_of_files().items():
            dataset = write(Path(folder, kind.replace(":", "")), files, max(8, len(files)), suffix)
            rows = range(len(dataset))
            plain = decode(dataset, rows, FORMS, device="cpu")
            # the fastest of so few files may be the host's, but it is the device's that shall be looked at
            choice = decode(dataset, rows[:1], FORMS, device=device).choice
            on_device = [each for each in find_decoders(device) if each.device != "cpu"]
            if choice is not None and on_device:
                choice = type(choice)(decoder=on_device[0], files_per_second={})
            fast = decode(dataset, rows, FORMS, device=device, choice=choice)
            gaps = torch.cat(
                [
                    (fast.pixels[Variant.of(each)].cpu().int() - plain.pixels[Variant.of(each)].int()).abs().flatten()
                    for each in FORMS
                ]
            ).float()
            inputs = torch.stack(
                [
                    (fast.inputs(each, 0, len(fast)).cpu() - plain.inputs(each, 0, len(plain))).abs().mean()
                    for each in FORMS
                ]
            )
            near &= float(gaps.mean()) < TOLERANCE
            used = choice.decoder.name if choice else ""
            print(
                f"| {kind} | {used} | {float(gaps.mean()):.4f} | {int(gaps.max())} | {float((gaps > 2).float().mean()):.5f} "
                f"| {float(inputs.mean()):.5f} |"
            )
    print("\nnear enough" if near else f"\nTOO FAR: expected a mean difference under {TOLERANCE} grey levels")
    return near


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="compare pixels instead of measuring")
    parser.add_argument("--items", type=int, help="photographs; 1500 on a GPU, 400 without")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, of which the fastest counts")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    device = resolve_device(asked.device)
    if asked.check:
        sys.exit(0 if check(device) else 1)
    num_items = asked.items or (400 if device == "cpu" else 1500)
    files = [encode(make_photo(SIZE, seed), quality=QUALITY) for seed in range(NUM_PICTURES)]
    with tempfile.TemporaryDirectory() as folder:
        dataset = write(Path(folder), files, num_items)
        rows, chosen = measure_loading(dataset, device, asked.repeats)
    decoders = measure_decoders(files, device, asked.repeats)
    resizing = measure_resizing(device, asked.repeats)
    settings = {
        "device": device,
        "items": num_items,
        "repeats": asked.repeats,
        "file_bytes": sum(map(len, files)) // len(files),
        "decoder": chosen["decoder"],
        "choosing_seconds": chosen["seconds"],
    }
    if asked.json:
        found = {"rows": rows, "decoders": decoders, "resizing": resizing}
        print(json.dumps({**settings, "machine": to_plain(describe_machine()), **found}, indent=1))
        return
    print(
        f"{num_items} photographs of {settings['file_bytes']} bytes, {count_cores()} cores, {device}, "
        f"{chosen['decoder']} chosen in {chosen['seconds']:.2f} s\n"
    )
    print("| contestant | forms | s | items/s | times plain |\n|---|---|---|---|---|")
    for row in rows:
        rates = f"{row['items_per_second']:.0f} | {row['times_plain']:.2f}"
        print(f"| {row['contestant']} | {row['forms']} | {row['seconds']:.2f} | {rates} |")
    print("\n| decoder | threads | files/s |\n|---|---|---|")
    for row in decoders:
        print(f"| {row['decoder']} | {row['threads']} | {row['files_per_second']:.0f} |")
    print("\n| resize and crop to 224 | images/s |\n|---|---|")
    for row in resizing:
        print(f"| {row['resize']} | {row['images_per_second']:.0f} |")


if __name__ == "__main__":
    main()
