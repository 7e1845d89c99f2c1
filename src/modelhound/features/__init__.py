"""Networks and a data set -> one feature vector per item and network.

    plain      one network at a time, everything anew: the reference
    many       all of the rest: survey networks (surveying), plan, run; remembered: what was made before
    workshop   many networks -> one module per architecture, tensors shared, parts with fingerprints; reading gets the tensors
    planner    networks -> plans; chains: what it must know of them, costing and feed_times: of the machine and the items
    engine     a plan -> features of many networks, with everything shared that can be; fetching: the weights of its next step;
               accounts: who took how long
    supply     decoded items and tokens, ahead of use; shelf: weights on the device, where staging brings them; spilling: what
               waits on disk
    allowance  how a limit of memory is divided; calibrating: how fast parts run; warming: a device's first second

Nothing here knows what the features are for.
"""

from modelhound.features.plain import arrange, build_network, extract_features, load_network, suitable_batch

__all__ = ["arrange", "build_network", "extract_features", "load_network", "suitable_batch"]
