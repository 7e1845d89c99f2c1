"""A run folder: what was asked, append-only records, the answer. The only room that writes results.

In:  records, as they come
Out: the same records, after a kill, a full disk or a crash at any moment
Nothing here knows what a record means. It owns every file name:

    RUN/asked.json      what was asked and what must stay the same when the run is resumed
    RUN/records.jsonl   one line per record, each with a checksum; a damaged or half-written line is left out
    RUN/answer.json     the answer and its headline, written anew at the end of every start
    RUN/lock            held while a process writes; the system lets go of it when that process dies

    CACHE/NAME.jsonl    facts worth remembering between runs, such as parameter counts (a Memo)

`runs` has the folder, `lines` the records as text, `files` writes so that nothing is ever half there, `memo` remembers.
"""

from modelhound.store.files import (
    explain_write_errors,
    is_disk_full,
    put_whole,
    told_by_the_system,
    write_file,
    write_folder,
)
from modelhound.store.memo import Memo, cache_folder
from modelhound.store.runs import (
    DEFAULT_ROOT,
    Run,
    RunFolder,
    RunSummary,
    default_run_path,
    list_runs,
    open_run,
    read_run,
    reserve_run,
    set_aside,
)

__all__ = [
    "DEFAULT_ROOT",
    "Memo",
    "Run",
    "RunFolder",
    "RunSummary",
    "cache_folder",
    "default_run_path",
    "explain_write_errors",
    "is_disk_full",
    "list_runs",
    "open_run",
    "put_whole",
    "read_run",
    "reserve_run",
    "set_aside",
    "told_by_the_system",
    "write_file",
    "write_folder",
]
