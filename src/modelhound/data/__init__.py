"""From a reference such as `fashion` or a path to batches of tensors.

In:  a data reference, and what a model wants its input to look like
Out: a Dataset that is known to be readable, and its batches in order
Nothing here knows what a model is or what becomes of a batch.

    open_dataset ── source.Listing ◄─ embedded, folder, …   one file per kind of source
        │ choosing   which items a limit takes
        │ checking   which of them can be read
        ▼
    Dataset ── loading ──► batches ◄── preprocessing (images), tokenising (texts)
"""

from modelhound.data.dataset import Dataset, check_there, open_asked, open_dataset
from modelhound.data.loading import Batch, InputForm, check_modality, load_batches, modality_of
from modelhound.data.preprocessing import OwnTransform, Preprocessing
from modelhound.data.source import Modality
from modelhound.data.tokenising import Tokenising

__all__ = [
    "Batch",
    "Dataset",
    "InputForm",
    "Modality",
    "OwnTransform",
    "Preprocessing",
    "Tokenising",
    "check_modality",
    "check_there",
    "load_batches",
    "modality_of",
    "open_asked",
    "open_dataset",
]
