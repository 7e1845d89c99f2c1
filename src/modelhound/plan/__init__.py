"""Decide, before anything runs, in which order to run many models, what they share and what that will cost.

    chain        what is planned, and the Plan: plain data
    tree         chains -> shared prefixes
    fitting      shared prefixes -> an order and places for outputs that fit into memory
    planning     all of it -> the plan with the fewest expected seconds
    memory       a plan -> bytes at its fullest moment
    forecast     a plan -> seconds by phase, work with and without sharing
    explanation  a plan -> a tree to draw
    placing      chains -> which of many workers runs which models
    dealing      a placement -> what each worker does next, while some die and others fall behind

Nothing in this room imports torch, opens a file or reads a clock.
"""

from modelhound.plan.chain import Chain, Costs, Keep, Plan, Segment, Step
from modelhound.plan.dealing import Deal
from modelhound.plan.explanation import ExplainedNode, explain_plan
from modelhound.plan.forecast import Forecast, forecast_plan, halving_spares
from modelhound.plan.memory import peak_bytes
from modelhound.plan.placing import Parcel, Placement, place_chains
from modelhound.plan.planning import least_bytes, make_plan

__all__ = [
    "Chain",
    "Costs",
    "Deal",
    "ExplainedNode",
    "Forecast",
    "Keep",
    "Parcel",
    "Placement",
    "Plan",
    "Segment",
    "Step",
    "explain_plan",
    "forecast_plan",
    "halving_spares",
    "least_bytes",
    "make_plan",
    "peak_bytes",
    "place_chains",
]
