"""Where a file of a data set can be downloaded, and where its content belongs."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LARGEST = 50 << 30  # bytes; the largest archive that can be downloaded has 12 GB, the largest split file 7 MB
LARGEST_LIST = 64 << 20


@dataclass(frozen=True)
class Source:
    """One file: addresses in the order in which they are tried, its checksum, and where its content belongs."""

    name: str  # file name, also in a mirror
    urls: tuple[str, ...] = ()
    drive_id: str = ""  # Google Drive
    checksum: str = ""  # "md5:…" or "sha256:…"
    inner: str = ""  # an archive inside the archive that holds the images
    places: Mapping[str, str] = field(default_factory=dict)  # path in the archive -> path below the set's folder

    @property
    def limit(self) -> int:
        """The largest plausible size in bytes."""
        return LARGEST_LIST if self.name.endswith((".json", ".txt")) else LARGEST

    @property
    def link(self) -> str:
        """The address to open in a browser; "" if there is none."""
        if self.drive_id:
            return f"https://drive.google.com/file/d/{self.drive_id}/view"
        return self.urls[0] if self.urls else ""
