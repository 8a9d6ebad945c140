"""The small CLIP that ships with the package: its weights, prompts, training and card."""
from pathlib import Path

CARD = Path(__file__).with_name("SMALL_CLIP.md")


def card_results(dataset: str) -> dict[str, dict[str, float]]:
    """Reads the small CLIP's results on a data set from its card.

    Args:
        dataset: The heading of the card's table, such as `LandCover`.

    Returns:
        Percent, as {method: {metric: mean over seeds}}; empty for a data set without a table.
    """
    # The table from the first cells of its header to the empty line after it.
    card = CARD.read_text(encoding="utf-8")
    table = card.partition(f"| {dataset} | accuracy | ECE |")[2].partition("\n\n")[0]
    results = {}
    for line in table.splitlines()[2:]:  # after the rest of the header and the line below it
        # Such as `| CoOp | 81.2 ± 0.3 | 4.5 ± 0.1 |`: the first word of each cell.
        cells = [cell.strip().partition(" ")[0] for cell in line.split("|")[1:4]]
        method, accuracy, ece = cells
        results[method] = {"accuracy": float(accuracy), "ece": float(ece)}
    return results
