"""What planning must know of models: what their parts cost, in what form they want items, how long texts are.

In:  Specimens; a data set of texts
Out: a Chain of each model; the distinct forms; factors by which texts are longer than what networks were probed with
Nothing here plans or runs.
"""

from collections.abc import Mapping, Sequence

from modelhound.data import Dataset, InputForm, Tokenising
from modelhound.data.tokens import tokenise_once
from modelhound.features.shelf import copied_bytes
from modelhound.features.supply import input_bytes, input_key
from modelhound.features.workshop import Specimen
from modelhound.models.parts import PROBE_TOKENS
from modelhound.plan import Chain, Segment

__all__ = ["chain_of", "forms_of", "stretch_of"]

_PEAK_OUTPUTS = 3  # inside a part, about so many tensors of the size of its input or output live at once
_SAMPLED_TEXTS = 200
_PADDING = 1.25  # of batches of texts of similar length, with some to spare


def chain_of(
    specimen: Specimen,
    *,
    num_bytes_per_value: int,
    seconds: Mapping[str, float] | None = None,
    stretch: float = 1.0,
    longest: float = 1.0,
    lean: bool = False,
) -> Chain:
    """What a planner must know of a model; `seconds` per item of its parts where they were measured.

    `stretch` is how much longer than the probe items are, and `longest` the longest of them: texts may be, images never. A
    `lean` chain counts no weights that can be used where they lie.
    """
    segments = []
    before = input_bytes(specimen.form)
    blueprint = specimen.blueprint
    sizes = blueprint.part_bytes
    if lean:
        sizes = tuple(copied_bytes(specimen, part.tensors) for part in blueprint.anatomy.parts)
    parts = zip(blueprint.anatomy.parts, specimen.fingerprints, sizes, strict=True)
    for part, fingerprint, weight_bytes in parts:
        longer = stretch if part is not blueprint.anatomy.parts[-1] else 1.0  # features are pooled
        output_bytes = int(longer * part.output_bytes_per_item) * num_bytes_per_value // 4
        largest_bytes = int(max(stretch, longest) * part.largest_bytes_per_item) * num_bytes_per_value // 4
        segments.append(
            Segment(
                fingerprint=fingerprint,
                flops_per_item=stretch * part.flops_per_item,
                output_bytes_per_item=output_bytes,
                weight_bytes=weight_bytes,
                peak_bytes_per_item=_PEAK_OUTPUTS * max(before, output_bytes, largest_bytes),
                seconds_per_item=(seconds or {}).get(fingerprint),
            )
        )
        before = output_bytes
    return Chain(
        model=str(specimen.model),
        input=input_key(specimen.form),
        input_bytes_per_item=input_bytes(specimen.form),
        segments=tuple(segments),
    )


def forms_of(specimens: Sequence[Specimen]) -> dict[str, InputForm]:
    """The distinct forms that these models want."""
    return {input_key(specimen.form): specimen.form for specimen in reversed(specimens)}


def stretch_of(form: InputForm, dataset: Dataset, *, lean: bool) -> tuple[float, float]:
    """How many times longer than the texts that networks were probed with those of the data set are, padding included.

    On average, and at most as far as it matters: where memory is limited (`lean`), batches of the longest must fit as well.
    """
    if not isinstance(form, Tokenising):
        return 1.0, 1.0
    step = max(1, len(dataset) // _SAMPLED_TEXTS)
    texts = tokenise_once(dataset.select(range(0, len(dataset), step)), [form])[form]
    usual = max(1.0, _PADDING * texts.num_tokens / len(texts) / PROBE_TOKENS)
    longest = min(form.max_tokens, _PADDING * int(texts.lengths.max())) / PROBE_TOKENS
    return usual, max(usual, longest) if lean else usual
