"""What is said of data that cannot be opened.

In:  a reference and options, as `open_dataset` takes them
Out: the sentence, which has the form that all of them have
"""

from typing import Any

import pytest

from modelhound.data import open_dataset
from modelhound.errors import DataError

__all__ = ["message"]


def message(reference: object, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        open_dataset(str(reference), **options)
    text = str(caught.value)
    assert text.startswith("cannot ")
    assert "expected" in text
    assert "Errno" not in text
    return text
