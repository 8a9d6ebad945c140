"""The notebook: stored without outputs, and executed in a kernel of its own on the embedded data and model."""
import nbformat
import pytest
from common import PROJECT
from nbclient import NotebookClient

NOTEBOOK = PROJECT / "tools" / "quickstart.ipynb"


def test_it_is_stored_without_outputs_and_needs_a_flag_for_downloads():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert "REAL_RUN = False" in code[0].source
    real = next(cell.source for cell in code if "reproduce.main" in cell.source)
    assert real.index("if REAL_RUN:") < real.index("reproduce.main")


@pytest.mark.slow
def test_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / ".package"))  # as after pip install -e
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells[1].source = notebook.cells[1].source.replace("NUM_IMAGES = 48", "NUM_IMAGES = 3")
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    told = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "LandCover, 3 test images" in told and "true class: annual crop land" in told
    assert "of 8 tiles are right" in told and "not run: set REAL_RUN = True" in told
    assert (tmp_path / "output/quickstart/report/report.html").is_file()
