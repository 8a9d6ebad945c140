"""The notebook: stored with its outputs, and executed in a kernel of its own.

`python tests/test_quickstart.py` executes it and stores the outputs.
"""
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "tools" / "quickstart.ipynb"


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()


def without_progress(notebook: nbformat.NotebookNode) -> None:
    """Removes progress bars and times of execution, and joins what was printed."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        outputs: list[nbformat.NotebookNode] = []
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                continue
            if outputs and output.get("name") == outputs[-1].get("name") == "stdout":
                outputs[-1].text += output.text
            else:
                outputs.append(output)
        if cell.cell_type == "code":
            cell.outputs = outputs


def printed(notebook: nbformat.NotebookNode) -> str:
    text = ""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text += output.get("text", "")
    return text


def test_it_is_stored_with_outputs_and_needs_a_flag_for_downloads():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, start=1):
        assert cell.execution_count == number  # stored in one go
        assert bool(cell.outputs) == (number > 1)  # the first one has the settings
        for output in cell.outputs:
            assert output.output_type in ("stream", "execute_result")
    text = printed(notebook)
    assert "SoC on LandCover: 48 test images of 24 classes" in text and "over-confidence" in text
    assert "img/s" not in text and "/home/" not in text and "Traceback" not in text
    assert "REAL_RUN = False" in code[0].source
    real = next(cell.source for cell in code if "reproduce.main" in cell.source)
    assert real.index("if REAL_RUN:") < real.index("reproduce.main")


@pytest.mark.slow
def test_it_runs(tmp_path, monkeypatch):
    # As after pip install -e.
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1] / ".package"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells[1].source = notebook.cells[1].source.replace("NUM_IMAGES = 48", "NUM_IMAGES = 3")
    execute(notebook, tmp_path)
    text = printed(notebook)
    assert "SoC on LandCover: 3 test images" in text and "run folder: output/quickstart/SoC" in text
    # The demo takes over the run of `evaluate`.
    assert "finished before; nothing to compute" in text
    assert "LandCover, 3 test images" in text and "true class: annual crop land" in text
    assert "of 8 tiles are right" in text and "not run: set REAL_RUN = True" in text
    assert (tmp_path / "output/quickstart/report/report.html").is_file()


if __name__ == "__main__":
    content = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        execute(content, Path(folder))
    without_progress(content)
    nbformat.write(content, NOTEBOOK)
