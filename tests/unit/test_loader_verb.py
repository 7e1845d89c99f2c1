"""The loader's search from settings to answer: what is known counts as long as it is of the same network."""

from pathlib import Path

from modelhound.settings import LoaderSearchSettings
from modelhound.verbs.loader import run_loader

NETWORK = """
import torch


def make():
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, WIDTH, 3, stride=2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    network.preprocessing = {"input_size": 32}
    return network
"""


def test_a_network_that_was_edited_is_measured_anew(tmp_path: Path) -> None:
    file = Path("own_loader_network.py")
    settings = LoaderSearchSettings(
        "digits",
        models=(f"py:{file}:make", "zoo:resnet-shapes"),
        limit=40,
        batch=("8", "16"),
        workers=("0",),
        grid=True,
        run=tmp_path / "run",
    )
    file.write_text(NETWORK.replace("WIDTH", "4"))
    first = run_loader(settings)
    assert (len(first.runs), first.num_resumed) == (4, 0)
    file.write_text(NETWORK.replace("WIDTH", "16"))
    edited = run_loader(settings)
    assert edited.num_resumed == 2
    before, after = ({(each.model, each.batch): each.at_seconds for each in result.runs} for result in (first, edited))
    assert {name for name, _ in before.items() if before[name] == after[name]} == {
        ("zoo:resnet-shapes", 8),
        ("zoo:resnet-shapes", 16),
    }
