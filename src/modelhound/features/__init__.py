"""Networks and a data set -> one feature vector per item and network.

    plain      one network at a time, everything anew: the reference
    workshop   many networks -> one module per architecture, tensors shared, parts with fingerprints
    engine     a plan -> features of many networks, with everything shared that can be

Nothing here knows what the features are for.
"""

from modelhound.features.plain import Extracted, arrange, build_network, extract_features, suitable_batch

__all__ = ["Extracted", "arrange", "build_network", "extract_features", "suitable_batch"]
