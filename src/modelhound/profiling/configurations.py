"""Which layers of a model are run, and how: all of them, the last ones, or a trunk with several heads.

In:  a bench, what was asked for
Out: Configurations, and which of those asked for the model does not have
Nothing here runs anything.
"""

from dataclasses import dataclass

from modelhound.errors import ModelError
from modelhound.profiling.benches import Bench
from modelhound.settings import ProfileSettings

__all__ = ["Configuration", "configurations_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Which layers of a model are run, and how."""

    name: str
    form: str
    """full, part, joint or apart."""
    layers: str
    num_layers_run: int
    trunk_stop: int
    """Parts before this one are a trunk that is run once for all heads; 0 where there is none."""
    first: int
    """The part with which every head begins."""
    heads: tuple[int, ...]
    """Which of the bench's files bring the heads."""

    @property
    def is_fed_with_outputs(self) -> bool:
        return self.first > 0 and self.trunk_stop == 0


def configurations_of(
    bench: Bench, settings: ProfileSettings
) -> tuple[list[Configuration], list[tuple[str, ModelError]]]:
    """What to run of this model, and which of it the model does not have."""
    found: list[Configuration] = []
    missing: list[tuple[str, ModelError]] = []
    num_layers, everyone = len(bench.layers), tuple(range(len(bench.files)))
    asked = [("part", span) for span in settings.part_spans()] + [("joint", span) for span in settings.joint_spans()]
    for form, span in asked:
        is_full = span.text == "full"
        name = "full" if is_full else f"{'last' if form == 'part' else 'joint'} {span.text}"
        try:
            first = bench.layers.start_of(span)
            if form == "joint" and first == 0:
                raise ModelError(
                    f"cannot join heads of {span.text} layers to {bench.model}: expected fewer than all of its {num_layers} "
                    "layers, so that a trunk is left"
                )
        except ModelError as error:
            missing.append((name, error))
            continue
        found.append(
            Configuration(
                name=name,
                form="full" if is_full else form,
                layers=span.text,
                num_layers_run=span.count(num_layers),
                trunk_stop=first if form == "joint" else 0,
                first=first,
                heads=everyone if form == "joint" else (0,),
            )
        )
    if any(each.form == "joint" for each in found):
        # The first model apart from the others is the full model itself.
        alone = 1 if "full" in settings.parts else 0
        found += [
            Configuration(
                name=f"apart {head + 1}",
                form="apart",
                layers="full",
                num_layers_run=num_layers,
                trunk_stop=0,
                first=0,
                heads=(head,),
            )
            for head in everyone[alone:]
        ]
    return found, missing
