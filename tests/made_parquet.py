"""Parquet files with images, as hubs have them."""
import json
from pathlib import Path


def write_columns(
    folder: Path, columns: dict, features: dict | None = None, name: str = "test.parquet"
) -> Path:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table(columns)
    if features:
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(metadata)
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, folder / name)
    return folder / name


def cells(hub: Path, count: int = 4) -> list:
    """The first pictures of a folder as cells of images."""
    cells = []
    for n in range(count):
        content = (hub / "pictures" / "test" / f"{n}.png").read_bytes()
        cells.append({"bytes": content, "path": None})
    return cells


def label_feature(names: list[str]) -> dict:
    return {"_type": "ClassLabel", "names": names}
