"""Feature rows that outlive a run: what made them and which item they are of -> one row of numbers, or "not here".

In:  `made_by`, a text that changes with whatever decides the numbers; a stamp per item; rows of float32, float16 or 16 bits
Out: the same rows, in any order and number; a row that was cut off, changed or lost is not here, and is computed again
Nothing here knows a network or an item, and nothing here ends a search: what ends the keeping is told in `trouble`.

    FOLDER/v1/lock                   held by many while they begin to use a key, by one while it removes keys
    FOLDER/v1/live/PID-RANDOM        the keys that one process uses; locked as long as that process lives
    FOLDER/v1/KEY/lock               held while a process adds rows; readers need none
    FOLDER/v1/KEY/index              a header, then 32 bytes per row: digest of the item, row number, CRC-32 of the row, check
    FOLDER/v1/KEY/rows-GENERATION    the rows one after another; GENERATION stands in the header of the index they belong to

`keeping` is what others call, `key` reads and writes one KEY, `sharing` keeps processes out of each other's way. Another format
gets another folder beside v1, and each leaves the other alone.
"""

from modelhound.feature_store.keeping import FeatureStore

__all__ = ["FeatureStore"]
