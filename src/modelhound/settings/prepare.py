"""What can be asked of `hound prepare`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from modelhound.errors import RequestError
from modelhound.settings.checks import check_at_least, check_text, split_list, tidy
from modelhound.settings.data import DataSettings

__all__ = ["PrepareSettings"]


@dataclass(frozen=True)
class _DataAndOut:
    """The two that need no name, in this order. Fields keep the place of the first class that has them."""

    data: str

    out: Path
    """Folder for the prepared items; it is a data set then: hound search OUT."""


@dataclass(frozen=True)
class PrepareSettings(DataSettings, _DataAndOut):
    """Decode a data set once, so that every later search only has to copy."""

    _: KW_ONLY

    models: tuple[str, ...] = ()
    """References or globs of the models it is for: each distinct way to resize and crop is written once."""

    size: int | None = None
    """Without --models: bring the shorter side to so many pixels and cut out the middle; the default is 224."""

    def __post_init__(self) -> None:
        DataSettings.__post_init__(self)
        tidy(self, "models", split_list(self.models))
        if isinstance(self.out, str):
            tidy(self, "out", Path(self.out))
        check_text("out", str(self.out))
        check_at_least("size", self.size, 8)
        if self.models and self.size is not None:
            raise RequestError(
                "cannot use --size together with --models: expected one of them, the models say what sizes they need"
            )
