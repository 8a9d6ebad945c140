"""The transcription of published tables: complete, as printed, and with the slips of the papers."""
from copy import deepcopy
from decimal import Decimal

import pytest
from promptcal.datasets import DATASET_REGISTRY
from promptcal.trainers.report import published

from published_slips import find_slips


@pytest.mark.parametrize(("where", "printed"), [
    (("vitl", "ece", "OTPT", "EuroSAT"), "17.7"),
    (("vitl", "accuracy", "SoC", "Average"), "72.3"),
    (("vitl_shift", "ece", "C-TPT", "ImageNetSketch"), "20.4"),
    (("vitl_2step", "ece", "soc", "DescribableTextures"), "11.1"),
    (("vitl_sals", "ece", "CTPT", "StanfordCars"), "2.2"),
    (("vitl_ace", "ace", "ZeroShot", "OxfordPets"), "2.4"),
    (("model_agnostic", "ece", "TPT", "ViT-B/16"), "11.2"),
    (("coop", "accuracy", "O-TPT", "2-shots"), "72.9"),
    (("complexity", "mflops", "OTPT", "1000"), "6537.0"),
    (("std_analysis", "ece_std", "SoC", "UCF101"), "0.22"),
    (("datasets", "images", "", "ImageNetSketch"), "50,889"),
])
def test_cells_by_any_spelling_of_a_method(where, printed):
    cell = published.find(*where)
    assert cell.printed == printed
    assert cell.value == Decimal(printed.replace(",", ""))
    assert (cell.source == f"Fillioux et al. (2026), Table {published.tables_of()[cell.table]['table']}")


def test_a_run_finds_the_table_of_its_conditions():
    def table_of(dataset: str, **conditions) -> str:
        return published.find_for_run("ece", "SoC", dataset, "ViT-L/14", **conditions).table

    assert table_of("EuroSAT") == "vitl"
    assert table_of("EuroSAT", steps=2) == "vitl_2step"
    assert table_of("EuroSAT", sals=True) == "vitl_sals"
    assert table_of("ImageNetR") == "vitl_shift"
    assert published.find_for_run("ece", "SoC", "EuroSAT", "ViT-B/16") is None
    assert published.find("vitl", "ece", "CoOp", "EuroSAT") is None
    assert set(published.tables_of()["datasets"]["columns"]) <= set(DATASET_REGISTRY)


def test_slips_of_the_paper():
    """The two-step table's accuracy differences are shifted by a column; the ACE table's have the
    wrong sign."""
    serious = set()
    by_rounding = set()
    two_step = {}
    of_ace = 0
    for slip in find_slips():
        cell = slip.cell
        if slip.rounding:
            by_rounding.add((cell.table, cell.metric, cell.method, cell.column))
        else:
            serious.add((cell.table, cell.metric, cell.column, slip.kind))
        if cell.table == "vitl_ace":
            of_ace += 1
        where = (cell.table, cell.metric, cell.method, slip.kind)
        if where == ("vitl_2step", "accuracy", "SoC", "difference"):
            two_step[cell.column] = (slip.printed, slip.recomputed)
    tables = {(table, metric) for table, metric, _, _ in serious}
    assert tables == {("vitl_2step", "accuracy"), ("vitl_ace", "ace")}
    assert ("vitl_2step", "accuracy", "EuroSAT", "difference") in serious
    assert ("vitl_2step", "accuracy", "ImageNet", "colour") in serious
    assert of_ace == 9
    assert ("vitl_shift", "accuracy", "SoC", "ImageNetR") in by_rounding
    assert two_step["ImageNet"] == ("1.4", "-0.8") and two_step["EuroSAT"] == ("-0.7", "+5.2")


def test_a_changed_cell_is_noticed(monkeypatch):
    """One wrong digit in a row without slips must show."""
    content = deepcopy(published.content())
    content["tables"]["vitl"]["rows"][0]["values"][0] = "93.5"
    monkeypatch.setattr(published, "content", lambda: content)
    slips = {(slip.kind, slip.cell.method, slip.rounding) for slip in find_slips()}
    assert ("average", "Zero-Shot", False) in slips


def test_sources_stand_for_themselves():
    """Another paper's figures are found only by asking for that source, and never beside the first
    paper's."""
    run = ("ece", "TPT", "EuroSAT", "ViT-B/16")
    assert published.find_for_run(*run) is None
    cots = published.find_for_run(*run, source="cots")
    otpt = published.find_for_run(*run, source="otpt_readme")
    assert cots.table == "cots_b16" and "Liang" in cots.source
    assert otpt.table == "otpt_b16" and "O-TPT" in otpt.source
    assert cots.printed != otpt.printed
    tda = published.find_for_run("ece_cots", "TDA", "EuroSAT", "ViT-B/16", source="cots")
    assert tda.printed == "6.66"
    assert published.find_for_run(*run, sals=True, source="cots").table == "cots_b16_sals"
    tables = published.tables_of(None)
    names = {table.get("source", published.SOC) for table in tables.values()}
    assert names == set(published.content()["sources"]) and len(tables) == 27
