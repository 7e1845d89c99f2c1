"""From a reference such as `fashion` or a folder's path to batches of tensors.

In:  a data reference, and what a model wants its input to look like
Out: a Dataset that is known to be readable, and its batches in order
Nothing here knows what a model is or what becomes of a batch.

    open_dataset ── source.Listing ◄─ embedded, folder      one file per kind of source
        │ choosing   which items a limit takes
        │ checking   which of them can be read
        ▼
    Dataset ── preprocessing, loading ──► batches
"""

from modelhound.data.dataset import Dataset, open_dataset
from modelhound.data.loading import load_batches
from modelhound.data.preprocessing import Preprocessing

__all__ = ["Dataset", "Preprocessing", "load_batches", "open_dataset"]
