"""From what an encoder says of every token, or patch, to one vector per item.

In:  a module of transformers, and how to pool
Out: a function from the module's inputs to features
Nothing here knows where weights come from. Of a text encoder's layers, each one's output is pooled the moment the next
layer receives it and then let go, so that memory does not grow with the number of layers: what stays is one vector per
item and layer, or for their mean one vector per item.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from modelhound.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["image_features", "text_features"]

Tokens = Mapping[str, "Tensor"]


def text_features(module: "nn.Module", *, pooling: str, layers: str) -> "Callable[[Tokens], Tensor]":
    """One vector per text: the last layer's, the mean of all layers', or with layers="best" those of all layers.

    The embeddings are no layer and take no part. pooling is mean or max over the tokens that are not padding, or cls,
    the first one. A module whose layers cannot be told apart is a ModelError.
    """
    pool = _POOLINGS[pooling]
    run = _runner(module)
    if layers == "last":
        return lambda tokens: pool(run(tokens).last_hidden_state, tokens["attention_mask"])
    blocks = _find_layers(module)
    _check_layers(module, blocks, run)

    def extract(tokens: Tokens) -> "Tensor":
        collected = _Mean() if layers == "mean" else _All()
        _visit_layers(blocks, run, tokens, lambda hidden: collected.add(pool(hidden, tokens["attention_mask"])))
        return collected.result()

    return extract


def image_features(module: "nn.Module", *, use_pooler: bool) -> "Callable[[Tensor], Tensor]":
    """One vector per image: what the model pools itself, else its class token, else the mean over all places.

    `use_pooler` is for the caller to say: a pooler whose weights were not in the checkpoint is noise.
    """
    has_class_token = any(name.endswith("cls_token") for name, _ in module.named_parameters())
    num_shuffled = _num_patches(module) if "noise" in inspect.signature(module.forward).parameters else None

    def extract(images: "Tensor") -> "Tensor":
        output = module(pixel_values=images, **({} if num_shuffled is None else _unshuffled(images, num_shuffled)))
        pooled = getattr(output, "pooler_output", None)
        if use_pooler and pooled is not None:
            return pooled.flatten(1)  # type: ignore[no-any-return]  # some keep the places, [items, channels, 1, 1]
        hidden: Tensor = output.last_hidden_state
        if hidden.ndim == 4:
            return hidden.mean(dim=(2, 3))
        return hidden[:, 0] if has_class_token else hidden.mean(dim=1)

    return extract


def _unshuffled(images: "Tensor", num_patches: int) -> "dict[str, Tensor]":
    """ViTMAE takes patches in the order of random numbers unless it is given some; these leave them where they are."""
    import torch

    places = torch.arange(num_patches, device=images.device, dtype=torch.float32)
    return {"noise": places.expand(len(images), -1)}


def _num_patches(module: "nn.Module") -> int | None:
    """As ViTMAE counts them; None for others, such as Hiera, which uses random numbers in its training alone."""
    patches: Any = getattr(getattr(module, "embeddings", None), "patch_embeddings", None)
    return getattr(patches, "num_patches", None)


def _mean(hidden: "Tensor", mask: "Tensor") -> "Tensor":
    hidden = hidden[:, : mask.shape[1]]  # some models pad to a window of their own
    weights = mask.to(hidden.dtype)
    weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1)
    return (weights.unsqueeze(1) @ hidden).squeeze(1)  # no copy of the hidden states, unlike multiplying by the mask


def _first(hidden: "Tensor", mask: "Tensor") -> "Tensor":
    return hidden[:, 0].clone()  # a view would keep all of it alive


def _max(hidden: "Tensor", mask: "Tensor") -> "Tensor":
    hidden = hidden[:, : mask.shape[1]]
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(dim=1)


_POOLINGS: "dict[str, Callable[[Tensor, Tensor], Tensor]]" = {"mean": _mean, "cls": _first, "max": _max}


class _Mean:
    """Adds up what comes."""

    def __init__(self) -> None:
        self._total: Any = None
        self._count = 0

    def add(self, vectors: "Tensor") -> None:
        self._total = vectors if self._total is None else self._total + vectors
        self._count += 1

    def result(self) -> "Tensor":
        return self._total / self._count  # type: ignore[no-any-return]


class _All:
    """Keeps what comes, [items, layers, features]."""

    def __init__(self) -> None:
        self._vectors: list[Tensor] = []

    def add(self, vectors: "Tensor") -> None:
        self._vectors.append(vectors)

    def result(self) -> "Tensor":
        import torch

        return torch.stack(self._vectors, dim=1)


def _runner(module: "nn.Module") -> Callable[..., Any]:
    """The module as a function of a tokenizer's output: it is given what it takes and nothing else."""
    import torch

    accepted = inspect.signature(module.forward).parameters
    config: Any = module.config
    names = ["input_ids", "attention_mask"]
    # Where there is one kind of text only, whatever the tokenizer says of a second one would be out of range.
    if "token_type_ids" in accepted and (getattr(config, "type_vocab_size", 0) or 0) > 1:
        names.append("token_type_ids")
    looks_globally = "global_attention_mask" in accepted

    def run(tokens: Tokens, **options: Any) -> Any:
        inputs = {name: tokens[name] for name in names if name in tokens}
        if looks_globally:  # Longformer's first token sees the whole text and is seen by all of it
            seen_by_all = torch.zeros_like(tokens["attention_mask"])
            seen_by_all[:, 0] = 1
            inputs["global_attention_mask"] = seen_by_all
        return module(**inputs, **options)

    return run


def _find_layers(module: "nn.Module") -> "list[nn.Module]":
    """The stack that most of the weights are in: the heaviest list of modules that lies in no other list.

    ALBERT has one layer and calls it again and again; that is a list of one.
    """
    from torch import nn

    outermost: list[nn.ModuleList] = []

    def look_into(parent: nn.Module) -> None:
        for child in parent.children():
            if isinstance(child, nn.ModuleList):
                outermost.append(child)
            else:
                look_into(child)

    look_into(module)
    if not outermost:
        raise _unreadable(module)
    heaviest: nn.ModuleList = max(outermost, key=_num_parameters)
    return list(heaviest)


def _num_parameters(module: "nn.Module") -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _visit_layers(
    blocks: "list[nn.Module]", run: Callable[..., Any], tokens: Tokens, visit: "Callable[[Tensor], None]"
) -> None:
    """Show `visit` the output of one layer after the other; none is kept here.

    A layer's output is what the next one receives (some models change it on the way), and the last one's is the
    model's own answer, after the final normalisation.
    """
    num_calls = 0

    def receive(block: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal num_calls
        if num_calls > 0:  # the first receives the embeddings
            visit(args[0] if args else kwargs["hidden_states"])
        num_calls += 1

    handles = [block.register_forward_pre_hook(receive, with_kwargs=True) for block in blocks]
    try:
        last = run(tokens).last_hidden_state
    finally:
        for handle in handles:
            handle.remove()
    visit(last)


def _check_layers(module: "nn.Module", blocks: "list[nn.Module]", run: Callable[..., Any]) -> None:
    """Hold what the hooks see against what the model itself says of its layers, on a text of four tokens."""
    import torch

    tokens = {"input_ids": torch.tensor([[0, 2, 3, 2]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    seen: list[torch.Tensor] = []
    try:
        with torch.inference_mode():
            _visit_layers(blocks, run, tokens, lambda hidden: seen.append(hidden[:, :4].clone()))
            stated = run(tokens, output_hidden_states=True).hidden_states[1:]
    except Exception as error:  # a stranger's forward; whatever goes wrong means the same here
        raise _unreadable(module) from error
    same = len(seen) == len(stated) and all(
        ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(seen, stated, strict=True)
    )
    if not same:
        raise _unreadable(module)


def _unreadable(module: "nn.Module") -> ModelError:
    return ModelError(
        f"cannot tell the layers of {type(module).__name__} apart: expected one stack of layers, use --layers last"
    )
