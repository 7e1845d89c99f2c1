"""What a search found, in a sentence and four figures: which model, how sure, how fast, why.

In:  a SearchView
Out: sentences and Figures
Words that a terminal says too are made by `analysis`.
"""

from modelhound.analysis.certainty import Certainty
from modelhound.analysis.newest import newest_failures
from modelhound.analysis.phases import total_phases
from modelhound.analysis.search_tables import short_chance_text, time_text
from modelhound.analysis.search_wording import best_sentence, tau_text, tie_sentence, time_sentence
from modelhound.analysis.wording import count_text, duration_text, number_text, plural, points_text, short_name
from modelhound.records import PlanMade, Ranking
from modelhound.report.finals_section import finals_figures, finals_sentence
from modelhound.report.parts import Figure, Sentence, Strong
from modelhound.report.search_view import SearchView, was_run

__all__ = ["answer_sentence", "key_figures", "supporting_sentences"]


def answer_sentence(view: SearchView) -> Sentence:
    """Which model, with its uncertainty."""
    ranking = view.ranking
    if not ranking.models:
        return ("No model has been measured yet.",) if view.run.answer is None else ("No model could be measured.",)
    if ranking.finals is not None:
        return finals_sentence(ranking.finals, view.data)
    strong, rest = best_sentence(ranking, view.data)
    if view.run.answer is None:
        return ("So far ", Strong(short_name(strong)), f" leads on {view.data}: {rest.partition(': ')[2]}")
    return (Strong(short_name(strong)), rest)


def supporting_sentences(view: SearchView) -> tuple[Sentence, ...]:
    ranking = view.ranking
    failed = {each.model for each in newest_failures(view.run.records)}
    sentences: list[Sentence] = []
    if view.run.answer is None and ranking.models:
        sentences.append((_progress_text(view),))
    if view.run.settings.get("weights") == "random":
        sentences.append((Strong("All weights are random"), ": this says nothing of trained models."))
    if not ranking.models:
        plans = view.run.of(PlanMade)
        if plans and view.run.answer is None:
            asked = f"{plural(plans[-1].num_models, 'model')} over {plural(plans[-1].num_items, 'item')}"
            sentences.append((f"Now: {asked}, about {duration_text(plans[-1].seconds)} of work by the plan.",))
        return (*sentences, ("What failed, and why, is below.",)) if failed else tuple(sentences)
    tied = _finalists_sentence(view) if ranking.finals is not None else tie_sentence(ranking)
    num_failed = len(failed - {row.model for row in ranking.models})
    if num_failed:
        sentences.append((Strong(f"{plural(num_failed, 'model')} failed"), ": why stands under What did not work."))
    if any(tied):
        before, name, after = tied
        sentences.append((before, Strong(short_name(name)), after))
    if view.measured:
        told = time_sentence(total_phases(view.measured), view.device or "this device", view.precision)
        finals = (
            "" if ranking.finals is None else f" Finals came on top: {duration_text(ranking.finals.spent_seconds)}."
        )
        sentences.append((f"{told}{finals}",))
    return tuple(sentences)


def _progress_text(view: SearchView) -> str:
    """Of a search that is not finished."""
    asked = max((plan.num_models for plan in view.run.of(PlanMade)), default=0)
    done = plural(len(view.ranking.models), "model")
    whole = f"{len(view.ranking.models)} of {plural(asked, 'model')}" if asked >= len(view.ranking.models) else done
    left = f", {len(view.dropped)} left the race" if view.dropped else ""
    return f"{whole} measured on all items{left}. The order may still change."


def _finalists_sentence(view: SearchView) -> tuple[str, str, str]:
    """The smallest of those that finals cannot tell apart; all empty where they can."""
    finals = view.ranking.finals
    first = [each.model for each in finals.finalists if each.place == 1] if finals else []
    rows = {row.model: row for row in view.ranking.models}
    tied = [rows[model] for model in first if model in rows]  # of two as small, the one ahead, as the terminal has it
    if finals is None or finals.verdict != "tied" or len(tied) < 2:
        return "", "", ""
    smallest = min(tied, key=lambda row: row.num_parameters)
    size = f" ({count_text(smallest.num_parameters)} parameters)."
    return "The smallest of the finalists that cannot be told apart is ", smallest.model, size


def key_figures(view: SearchView) -> tuple[Figure, ...]:
    ranking = view.ranking
    if not ranking.models:
        return ()
    if ranking.finals is not None:
        return finals_figures(ranking.finals)
    best = ranking.models[0]
    tried = len(ranking.models) + len(view.dropped)
    size = f"{count_text(best.num_parameters)} parameters, the best of {plural(tried, 'model')}"
    if view.run.answer is None:
        size += " so far"
    figures = [Figure(question="Which model", value=_name_only(best.model), note=size)]
    if view.certainty is not None and len(ranking.models) > 1:
        figures.append(_sureness(ranking, view.certainty))
    figures.append(_speed(view))
    figures.append(_reason(view))
    return tuple(figures)


def _speed(view: SearchView) -> Figure:
    best = view.ranking.models[0]
    took = f"{time_text(best.seconds)} of this search, scoring included"
    record = next((each for each in view.measured if each.model == best.model), None)
    if record is not None and not was_run(record):
        note = f"its features were remembered: {took}; --fresh runs it again"
        return Figure(question="How fast", value="not run", note=note)
    speed = view.ranking.num_items / max(best.seconds, 1e-9)
    where = view.device or "this device"
    return Figure(question="How fast", value=f"{number_text(speed)} items/s", note=f"on {where}: {took}")


def _sureness(ranking: Ranking, certainty: Certainty) -> Figure:
    if certainty.most_lost > 0:
        lost = points_text(ranking.metric, certainty.most_lost).lstrip("+")
        unit = "" if ranking.metric == "R2" else " points"
        note = f"to be the best. If another is better, then by at most {lost}{unit} ({ranking.confidence:.0%})"
    elif certainty.chance_best == 1:
        note = "to be the best: no other reached it in any resample of the items"
    else:
        often = f"{ranking.confidence:.0%} of all resamples of the items"
        note = f"to be the best: others may be as good, but in {often} none is better"
    return Figure(question="How sure", value=f"{short_chance_text(certainty.chance_best)} chance", note=note)


def _reason(view: SearchView) -> Figure:
    """Why this one: its lead over the first that is clearly worse, and whether size explains it."""
    ranking, certainty = view.ranking, view.certainty
    tau = ranking.size_agreement
    control = "" if tau is None else f". {_what_size_says(tau)} (τ\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{tau_text(tau)})"
    if len(ranking.models) == 1 and view.dropped:
        chance = max(each.chance for each in view.dropped)
        among = "the best" if view.dropped[0].top == 1 else f"among the best {view.dropped[0].top}"
        note = f"{plural(len(view.dropped), 'other')} left early, with a chance of at most {chance:.1%} to be {among}{control}"
        return Figure(question="Why", value="last in the race", note=note)
    if certainty is None or certainty.next_model is None:
        value = "no clear lead" if len(ranking.models) > 1 else "the only one"
        note = f"none of the others is clearly worse: more items would tell{control}" if len(ranking.models) > 1 else ""
        return Figure(question="Why", value=value, note=note)
    low, high = (points_text(ranking.metric, end) for end in certainty.lead_interval)
    unit = "" if ranking.metric == "R2" else " points"
    return Figure(
        question="Why",
        value=f"{points_text(ranking.metric, certainty.lead)}{unit}",
        note=f"({low} to {high}) over {_name_only(certainty.next_model)}, the first that is clearly worse{control}",
    )


def _what_size_says(tau: float) -> str:
    """Of Kendall's tau between the ranking and the control."""
    if abs(tau) < 0.3:
        return "Size does not explain it"
    return "Larger models do better here" if tau > 0 else "Smaller models do better here"


def _name_only(model: str) -> str:
    return short_name(model.partition(":")[2] or model, 36)
