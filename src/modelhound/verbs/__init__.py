"""What modelhound does, one module per verb. Verbs do not import each other: what two need moves down a floor.

They live one folder down so that `modelhound.search` can be the function: a module of that name beside `__init__.py` would
take its place as soon as anything imported it.
"""
