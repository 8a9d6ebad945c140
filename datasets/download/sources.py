"""Where a file of a benchmark can be had, and what becomes of it."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LARGEST = 50 << 30  # bytes; the largest archive that has an address takes 12 GB, the largest split file 7 MB
LARGEST_LIST = 64 << 20


@dataclass(frozen=True)
class Source:
    """One file: addresses in the order they are tried, its checksum, and where the parts of an archive belong."""

    name: str  # file name, also the one looked for in a mirror
    urls: tuple[str, ...] = ()
    drive_id: str = ""  # Google Drive
    checksum: str = ""  # "md5:…" or "sha256:…"
    inner: str = ""  # an archive inside the archive that holds the images
    places: Mapping[str, str] = field(default_factory=dict)  # path in the archive -> path below the set's folder

    @property
    def limit(self) -> int:
        """Bytes beyond which it cannot be the file."""
        return LARGEST_LIST if self.name.endswith((".json", ".txt")) else LARGEST

    @property
    def link(self) -> str:
        """The address a person would open in a browser, or nothing if none is known."""
        if self.drive_id:
            return f"https://drive.google.com/file/d/{self.drive_id}/view"
        return self.urls[0] if self.urls else ""
