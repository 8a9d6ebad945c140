"""The small CLIP that ships with the package: its weights, prompts, training and card."""
from pathlib import Path

CARD = Path(__file__).with_name("SMALL_CLIP.md")


def card_results(dataset: str) -> dict[str, dict[str, float]]:
    """The results on the card in percent, as {method: {metric: mean over seeds}}; empty for a data
    set without any.
    """
    table = (
        CARD.read_text(encoding="utf-8")
        .partition(f"| {dataset} | accuracy | ECE |")[2]
        .partition("\n\n")[0]
    )
    rows = [
        [cell.strip().partition(" ")[0] for cell in line.split("|")[1:4]]
        for line in table.splitlines()[2:]
    ]
    return {
        method: {"accuracy": float(accuracy), "ece": float(ece)} for method, accuracy, ece in rows
    }
