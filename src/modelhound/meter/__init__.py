"""The only clock, and the only eye on the machine.

    clock      seconds for differences, dates for people
    phases     a Meter: where the time of one job goes
    machine    what machine this is, and which device is meant

Nothing here knows what the work is for.
"""

from modelhound.meter.clock import seconds_now, utc_now
from modelhound.meter.machine import count_cores, describe_machine, resolve_device
from modelhound.meter.phases import Meter

__all__ = ["Meter", "count_cores", "describe_machine", "resolve_device", "seconds_now", "utc_now"]
