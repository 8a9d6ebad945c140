"""FGVC-Aircraft: 100 variants of aircraft, split by the text lists that come with the images."""
from __future__ import annotations

from .base import DATASET_REGISTRY, Datum
from .checks import read_lines
from .download.fetch import Source
from .file_dataset import FileDataset, Splits
from .utils.errors import DataError, first_five
from .utils.files import leads_out

LISTS = {
    "train": "images_variant_train.txt",
    "val": "images_variant_val.txt",
    "test": "images_variant_test.txt",
}
ARCHIVE_FOLDER = "fgvc-aircraft-2013b/data"
ARCHIVES_URL = "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives"


@DATASET_REGISTRY.register()
class FGVCAircraft(FileDataset):
    """Aircraft of 100 variants."""

    label = "Aircraft"
    display_order = 6
    folder = "fgvc_aircraft"
    images = "images"
    template = "a photo of a {}, a type of aircraft."
    expected_classes = 100
    expected_test = 3_333
    published_test = "2b49e8d548b3"
    metadata = (Source("variants.txt"), Source(LISTS["test"]))
    archives = (Source(
        "fgvc-aircraft-2013b.tar.gz",
        urls=(f"{ARCHIVES_URL}/fgvc-aircraft-2013b.tar.gz",),
        checksum="md5:d4acdd33327262359767eeaa97a4f732",
        places={
            f"{ARCHIVE_FOLDER}/images": "images",
            f"{ARCHIVE_FOLDER}/variants.txt": "variants.txt",
            f"{ARCHIVE_FOLDER}/images_variant_train.txt": LISTS["train"],
            f"{ARCHIVE_FOLDER}/images_variant_val.txt": LISTS["val"],
            f"{ARCHIVE_FOLDER}/images_variant_test.txt": LISTS["test"],
        },
    ),)

    def read(self) -> Splits:
        """Reads the lists of the splits. Labels follow the order of variants.txt.

        The lists of training and validation images may be absent from a copy for testing.
        """
        classnames = self.lines("variants.txt")
        labels = {name: label for label, name in enumerate(classnames)}
        lists = {}
        for split, file in LISTS.items():
            if split == "test" or (self.dataset_dir / file).exists():
                lists[split] = self.read_list(file, labels)
        return Splits(classnames, **lists)

    def read_list(self, file: str, labels: dict[str, int]) -> list[Datum]:
        """Reads a list with one `<image number> <variant>` per line."""
        items = []
        bad = []
        for line in self.lines(file):
            image, *names = line.split(maxsplit=1)
            variant = "".join(names)  # "" if the line has an image alone
            if variant in labels and not leads_out(image):
                items.append(self.datum(f"{image}.jpg", labels[variant], variant))
            else:
                bad.append(line)
        if bad:
            raise DataError(f"{self.dataset_dir / file} has lines that are not `<image number> "
                            f"<variant>` with a variant of variants.txt: {first_five(bad)}")
        return items

    def lines(self, file: str) -> list[str]:
        """The lines of a list in the set's folder."""
        return read_lines(self.require(Source(file)))
