"""Result files: what a script writes, and below it what people have to say of it."""

from pathlib import Path

__all__ = ["write_document"]

_NOTES = "\n## Notes\n"


def write_document(path: Path, document: str) -> None:
    """Write a result anew; what stands below "## Notes" in the file is kept."""
    _, heading, notes = path.read_text().partition(_NOTES) if path.exists() else ("", "", "")
    path.write_text(document + heading + notes)
