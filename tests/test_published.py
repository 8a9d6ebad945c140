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
    assert cell.source == f"Fillioux et al. (2026), Table {published.tables_of()[cell.table]['table']}"


def test_a_run_finds_the_table_of_its_conditions():
    assert published.find_for_run("ece", "SoC", "EuroSAT", "ViT-L/14").table == "vitl"
    assert published.find_for_run("ece", "SoC", "EuroSAT", "ViT-L/14", steps=2).table == "vitl_2step"
    assert published.find_for_run("ece", "SoC", "EuroSAT", "ViT-L/14", sals=True).table == "vitl_sals"
    assert published.find_for_run("ece", "SoC", "ImageNetR", "ViT-L/14").table == "vitl_shift"
    assert published.find_for_run("ece", "SoC", "EuroSAT", "ViT-B/16") is None
    assert published.find("vitl", "ece", "CoOp", "EuroSAT") is None
    assert set(published.tables_of()["datasets"]["columns"]) <= set(DATASET_REGISTRY)


def test_slips_of_the_paper():
    slips = find_slips()
    serious = {(s.cell.table, s.cell.metric, s.cell.column, s.kind) for s in slips if not s.rounding}
    # The two-step table's accuracy differences are shifted by a column; the ACE table's have the wrong sign.
    assert {key[:2] for key in serious} == {("vitl_2step", "accuracy"), ("vitl_ace", "ace")}
    assert ("vitl_2step", "accuracy", "EuroSAT", "difference") in serious
    assert ("vitl_2step", "accuracy", "ImageNet", "colour") in serious
    assert sum(s.cell.table == "vitl_ace" for s in slips) == 9
    by_rounding = {(s.cell.table, s.cell.metric, s.cell.method, s.cell.column) for s in slips if s.rounding}
    assert ("vitl_shift", "accuracy", "SoC", "ImageNetR") in by_rounding
    two_step = {}
    for slip in slips:
        if (slip.cell.table, slip.cell.metric, slip.cell.method, slip.kind) == (
                "vitl_2step", "accuracy", "SoC", "difference"):
            two_step[slip.cell.column] = (slip.printed, slip.recomputed)
    assert two_step["ImageNet"] == ("1.4", "-0.8") and two_step["EuroSAT"] == ("-0.7", "+5.2")


def test_a_changed_cell_is_noticed(monkeypatch):
    """The check is no formality: one wrong digit in a sound row must show."""
    broken = deepcopy(published.content())
    broken["tables"]["vitl"]["rows"][0]["values"][0] = "93.5"
    monkeypatch.setattr(published, "content", lambda: broken)
    assert any(s.kind == "average" and s.cell.method == "Zero-Shot" and not s.rounding for s in find_slips())


def test_sources_stand_for_themselves():
    """Another's figures for the same run are found only by asking for that source, and never beside the paper's."""
    run = ("ece", "TPT", "EuroSAT", "ViT-B/16")
    assert published.find_for_run(*run) is None
    cots, otpt = (published.find_for_run(*run, source=source) for source in ("cots", "otpt_readme"))
    assert (cots.table, otpt.table) == ("cots_b16", "otpt_b16") and cots.printed != otpt.printed
    assert "Liang" in cots.source and "O-TPT" in otpt.source
    assert published.find_for_run("ece_cots", "TDA", "EuroSAT", "ViT-B/16", source="cots").printed == "6.66"
    assert published.find_for_run(*run, sals=True, source="cots").table == "cots_b16_sals"
    names = {table.get("source", published.SOC) for table in published.tables_of(None).values()}
    assert names == set(published.content()["sources"]) and len(published.tables_of(None)) == 27
