"""Imported by servers that fork test processes, so that each of those has timm loaded already."""

from modelhound.compat import import_timm

import_timm()
