"""Every scorer there is, by name. To add one: write its file, add its line here and its name to `settings.SCORERS`.

In:  nothing
Out: REGISTRY
Nothing here knows how a scorer works.
"""

from typing import Protocol

from modelhound.scores.algebra import Algebra
from modelhound.scores.centroid import score_by_centroid
from modelhound.scores.feature_set import Missing, Score
from modelhound.scores.gbc import score_by_gbc
from modelhound.scores.hscore import score_by_hscore
from modelhound.scores.hscore_shrunk import score_by_hscore_shrunk
from modelhound.scores.knn import score_by_knn
from modelhound.scores.learning import Learning
from modelhound.scores.leep import score_by_leep
from modelhound.scores.logme import score_by_logme
from modelhound.scores.nleep import score_by_nleep
from modelhound.scores.probe import score_by_probe
from modelhound.scores.ridge import score_by_ridge
from modelhound.scores.sfda import score_by_sfda
from modelhound.scores.sgd_probe import score_by_sgd_probe
from modelhound.scores.transrate import score_by_transrate

__all__ = ["REGISTRY", "Scorer"]


class Scorer(Protocol):
    """Judges features; takes from the algebra what it needs, and from the seed whatever it draws.

    One that has to learn first may leave that to whoever learns for several models at once.
    """

    def __call__(self, algebra: Algebra, *, seed: int) -> Score | Missing | Learning: ...


REGISTRY: dict[str, Scorer] = {
    "ridge": score_by_ridge,
    "knn": score_by_knn,
    "probe": score_by_probe,
    "hscore": score_by_hscore,
    "logme": score_by_logme,
    "centroid": score_by_centroid,
    "sgd_probe": score_by_sgd_probe,
    "hscore_shrunk": score_by_hscore_shrunk,
    "nleep": score_by_nleep,
    "transrate": score_by_transrate,
    "gbc": score_by_gbc,
    "sfda": score_by_sfda,
    "leep": score_by_leep,
}
