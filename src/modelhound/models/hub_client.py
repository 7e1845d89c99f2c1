"""The Hugging Face hub as this package sees it: look a model up, list names, fetch files into the client's cache.

In:  a repository, a revision, names of files
Out: a commit and its files, names, a folder on disk
Nothing here knows what a model is. Everything goes through huggingface_hub, with its cache, offline mode, endpoint and
token. What goes wrong becomes a ModelError in plain words. A hub that does not answer is asked once: then the cache has to do.
"""

import contextlib
import os
import threading
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub as client
from huggingface_hub import errors as trouble
from huggingface_hub.utils import disable_progress_bars, logging, validate_repo_id  # type: ignore[attr-defined]

from modelhound.errors import ModelError, first_line
from modelhound.store import is_disk_full

__all__ = ["HubClient", "Snapshot", "quiet"]

_MOST_LISTED = 1000
_PATIENCE_SECONDS = 20.0  # for a question; downloads have the client's own limits
_SERVER_TROUBLE = 500
_TRANSPORTS = ("httpx", "httpx2", "httpcore", "requests", "urllib3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One commit of one repository."""

    repository: str
    revision: str | None
    """What was asked for: a branch, a tag or a commit; None is the usual branch."""

    commit: str
    files: tuple[str, ...]
    """Those of the commit; without the hub, those in the cache."""

    info: Any = None
    """What the hub says of the model; None where it was not asked."""


class HubClient:
    """One hub and one cache; None means whatever the client is set up for."""

    def __init__(self, *, endpoint: str | None = None, cache: Path | None = None) -> None:
        self._endpoint, self._cache = endpoint, cache
        self.forget()

    def forget(self) -> None:
        """Begin anew: the hub may be back, a branch may have moved on."""
        self._unreachable: Exception | None = None
        self._known: dict[tuple[str, str | None], Snapshot] = {}
        self._noted: set[tuple[str, str]] = set()  # branches whose commit is in the cache

    def exists(self, repository: str, revision: str | None) -> bool:
        """Whether there is such a model, as far as can be told; the doubtful ones are left to `look_up`."""
        try:
            validate_repo_id(repository)
        except trouble.HFValidationError:
            return False
        if self._cached(repository, revision) is not None:
            return True
        try:
            self._ask(repository, revision)
        except Exception as error:
            is_missing = isinstance(error, trouble.RepositoryNotFoundError)
            return not is_missing or isinstance(error, trouble.GatedRepoError)  # which is a kind of the former
        return True

    def look_up(self, repository: str, revision: str | None) -> Snapshot:
        """Which commit a name stands for and which files that has."""
        try:
            return self._ask(repository, revision)
        except Exception as error:
            cached = self._cached(repository, revision) if _is_unreachable(error) else None
            if cached is None:
                raise self._explain(repository, revision, error) from error
            self._known[repository, revision] = cached
            return cached

    def list_names(self, *, author: str | None, containing: str | None) -> list[str]:
        """Names on the hub, the most downloaded ones if there are very many; without the hub, all those in the cache."""
        try:
            if self._unreachable is not None:
                raise self._unreachable
            # asked first: listing would try for half a minute
            client.get_session().head(self._api.endpoint, timeout=_PATIENCE_SECONDS)
            listed = self._api.list_models(author=author, search=containing, sort="downloads", limit=_MOST_LISTED)
            return sorted({model.id for model in listed})
        except Exception as error:
            if not _is_unreachable(error):
                raise ModelError(f"cannot list models of the hub: {first_line(error)}; try again later") from error
            self._unreachable = error
        names = self.cached_names()
        if not names:
            raise ModelError(
                f"cannot list models of the hub: {self._why_unreachable(self._unreachable)}, and there are none in the "
                "cache; check the connection, HF_ENDPOINT and HF_HUB_OFFLINE"
            ) from self._unreachable
        return names

    def cached_names(self) -> list[str]:
        """Models of which the cache holds something; nobody is asked."""
        try:
            repositories = client.scan_cache_dir(self._cache).repos
        except (trouble.CacheNotFound, OSError, ValueError):
            return []
        return sorted(each.repo_id for each in repositories if each.repo_type == "model")

    def why_silent(self, *, patience_seconds: float) -> str | None:
        """Why the hub cannot be had just now, in words; None where it answers, whatever it says."""
        found: list[str | None] = []

        def ask() -> None:
            try:
                answer = client.get_session().head(self._api.endpoint, timeout=patience_seconds)
            except (
                Exception
            ) as error:  # the transport raises many kinds, from names nobody knows to broken certificates
                found.append(self._why_unreachable(error))
            else:
                status = answer.status_code
                is_broken = status >= _SERVER_TROUBLE
                found.append(f"the hub at {self._api.endpoint} answers with error {status}" if is_broken else None)

        # beside this thread: whoever looks up the name of a host does not heed the client's patience
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(patience_seconds)
        if found:
            return found[0]
        return f"the hub at {self._api.endpoint} does not answer within {patience_seconds:g} s"

    def fetch(self, snapshot: Snapshot, files: Collection[str]) -> Path:
        """The commit's folder in the cache, with these files in it; what is there already is not asked for again."""
        wanted = [file for file in dict.fromkeys(("config.json", *files)) if file in snapshot.files]
        if not wanted:
            raise ModelError(
                f"cannot fetch {_name(snapshot.repository, snapshot.revision)}: it has none of these files"
            )
        with quiet():
            branch = snapshot.revision or "main"
            noted = (snapshot.repository, branch)
            if snapshot.info is not None and branch != snapshot.commit and noted not in self._noted:
                # By this the client notes which commit the branch stands for: offline, nobody else can tell.
                self._download(snapshot, wanted[0], branch)
                self._noted.add(noted)
            paths = [self._download(snapshot, file, snapshot.commit) for file in wanted]
        return paths[0].parents[wanted[0].count("/")]

    @property
    def _api(self) -> client.HfApi:
        return client.HfApi(endpoint=self._endpoint)

    def _ask(self, repository: str, revision: str | None) -> Snapshot:
        """Ask the hub, once; raises what the client raises."""
        if (repository, revision) in self._known:
            return self._known[repository, revision]
        if self._unreachable is not None:
            raise self._unreachable
        try:
            with quiet():
                info = self._api.model_info(repository, revision=revision, timeout=_PATIENCE_SECONDS)
        except Exception as error:
            if _is_unreachable(error):
                self._unreachable = error
            raise
        files = tuple(each.rfilename for each in info.siblings or ())
        snapshot = Snapshot(repository=repository, revision=revision, commit=str(info.sha), files=files, info=info)
        self._known[repository, revision] = snapshot
        return snapshot

    def _cached(self, repository: str, revision: str | None) -> Snapshot | None:
        """What the cache holds of a name."""
        try:
            found = client.try_to_load_from_cache(repository, "config.json", cache_dir=self._cache, revision=revision)
        except (OSError, ValueError):
            return None
        if not isinstance(found, str):
            return None
        folder = Path(found).parent
        files = tuple(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
        return Snapshot(repository=repository, revision=revision, commit=folder.name, files=files)

    def _download(self, snapshot: Snapshot, file: str, revision: str) -> Path:
        try:
            path = client.hf_hub_download(
                snapshot.repository,
                file,
                revision=revision,
                cache_dir=self._cache,
                endpoint=self._endpoint,
                local_files_only=self._unreachable is not None,
            )
        except Exception as error:  # the client raises many kinds: HTTP, cache, gating, offline, damage, disk
            if self._unreachable is None and isinstance(error, trouble.LocalEntryNotFoundError):
                self._unreachable = error
            raise self._explain(snapshot.repository, snapshot.revision, error, file) from error
        return Path(path)

    def _why_unreachable(self, error: Exception) -> str:
        if isinstance(error, trouble.OfflineModeIsEnabled):
            return "HF_HUB_OFFLINE is set, so the hub is not asked"
        return f"the hub at {self._api.endpoint} does not answer ({first_line(error)})"

    def _explain(self, repository: str, revision: str | None, error: Exception, file: str = "") -> ModelError:
        """What went wrong and what to do, in plain words."""
        page = f"{self._api.endpoint}/{repository}"
        log_in = "log in with `hf auth login` or set HF_TOKEN"
        match error:
            case trouble.GatedRepoError():
                why = f"it is gated; accept its conditions at {page}, then {log_in}"
            case trouble.DisabledRepoError():
                why = f"the hub has disabled it, see {page}; choose another model"
            case trouble.RevisionNotFoundError():
                why = f"it has no revision {revision!r}; expected a branch, tag or commit, see {page}/tree/main"
            case trouble.RepositoryNotFoundError():
                why = f"the hub has no such model that you may see; check the spelling, and if it is private {log_in}"
            case trouble.RemoteEntryNotFoundError():
                why = f"it has no file {file!r}; see {page}/tree/main"
            case OSError() if is_disk_full(error):
                why = "the disk is full; free some space, or set HF_HOME to a folder on another disk"
            case PermissionError():
                why = f"the cache cannot be written ({first_line(error)}); make it writable, or set HF_HOME to another folder"
            case _ if file and not isinstance(error, trouble.LocalEntryNotFoundError):
                why = f"the download of {file!r} broke off ({first_line(error)}); start again, finished files are kept"
            case _ if _is_unreachable(error):
                lacking = f"its {file!r}" if file else "it"
                why = (
                    f"{self._why_unreachable(self._unreachable or error)}, and {lacking} is not in the cache; check "
                    "the connection, HF_ENDPOINT and HF_HUB_OFFLINE, or fetch it beforehand with "
                    f"`hf download {repository}`"
                )
            case _:
                why = f"{first_line(error)}; see {page}"
        return ModelError(f"cannot fetch {_name(repository, revision)}: {why}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Only `cli` writes to the terminal; whoever wants to hear the client sets HF_HUB_VERBOSITY."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        disable_progress_bars()
        if not os.environ.get("HF_HUB_VERBOSITY"):
            logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        yield


def _name(repository: str, revision: str | None) -> str:
    return f"hf:{repository}@{revision}" if revision else f"hf:{repository}"


def _is_unreachable(error: Exception) -> bool:
    """Whether there was no answer at all, or none that says anything of the model."""
    if isinstance(error, trouble.HfHubHTTPError):
        return error.response is not None and error.response.status_code >= _SERVER_TROUBLE
    from_transport = type(error).__module__.partition(".")[0] in _TRANSPORTS
    return from_transport or isinstance(error, ConnectionError | TimeoutError | trouble.LocalEntryNotFoundError)
