"""The pytest plugin, in test runs of its own; and the examples."""

from __future__ import annotations

import ast
import importlib.util
import json
import pathlib
import sys
import types

import kofm
import pytest
from conftest import until

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
HAS_PLUGIN = importlib.util.find_spec("xdist") is not None

MARKED = """
import pytest

@pytest.mark.kofm("board:2")
def test_fixture(kofm, kofm_client):
    assert len(kofm.units["board"]) == 2
    assert kofm_client.pool("board")["held"] == 2

@pytest.mark.kofm("board")
def test_marker_alone(kofm_client):
    assert kofm_client.pool("board")["held"] >= 1

@pytest.fixture(scope="session")
def licence(kofm_acquire):
    return kofm_acquire("licence").units["licence"]

def test_session(licence):
    assert len(licence) == 1
"""


@pytest.fixture
def run(pytester: pytest.Pytester, up):
    # The plugin is named here if the package is not installed.
    installed = any(
        entry.name == "kofm"
        for entry in _entry_points("pytest11")
    )
    plugin = () if installed else ("-p", "kofm.pytest_plugin")

    def run(text: str, *args: str, addr: str = up.addr):
        pytester.makepyfile(text)
        return pytester.runpytest_subprocess(*plugin, "--kofm-addr", addr, *args)

    return run


def _entry_points(group):
    from importlib.metadata import entry_points

    found = entry_points()
    return found.select(group=group) if hasattr(found, "select") else found.get(group, [])


def test_marked_tests_hold_units(run, up):
    run(MARKED).assert_outcomes(passed=3)
    client = kofm.Client(up.addr)
    until("all is given back", lambda: not client.leases())


@pytest.mark.skipif(not HAS_PLUGIN, reason="needs pytest-xdist")
def test_workers_of_xdist_hold_different_units(run, up, tmp_path):
    text = f"""
    import pathlib, time, pytest

    @pytest.mark.kofm("board")
    @pytest.mark.parametrize("number", range(8))
    def test_exclusive(kofm, number):
        used = pathlib.Path({str(tmp_path)!r}) / kofm.units["board"][0]
        used.touch(exist_ok=False)
        time.sleep(0.05)
        used.unlink()
    """
    run(text, "-n", "4").assert_outcomes(passed=8)


def test_faults_are_errors_or_skips(run):
    run(MARKED.replace("board:2", "board:99")).assert_outcomes(passed=2, errors=1)
    alone = "def test_it(kofm): pass"
    result = run(alone)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the test must name its units*"])
    marked = "import pytest\n@pytest.mark.kofm('gpu')\ndef test_it(): pass"
    result = run(marked, addr="unix:/nonexistent/socket")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the socket does not exist*--kofm-optional*"])
    run(marked, "--kofm-optional", addr="unix:/nonexistent/socket").assert_outcomes(skipped=1)


def test_examples_are_python(monkeypatch, up):
    files = sorted(EXAMPLES.glob("*.py"))
    assert [it.name for it in files] == ["celery_task.py", "ray_actor.py"]
    for path in files:
        ast.parse(path.read_text(), str(path))
        uses = {node.attr for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name) and node.value.id == "kofm"}
        assert uses and uses <= set(kofm.__all__), uses


def test_the_celery_example_holds_units(monkeypatch, up):
    def task(**_options):
        return lambda function: function

    celery = types.ModuleType("celery")
    celery.Celery = lambda *_, **__: types.SimpleNamespace(task=task)
    monkeypatch.setitem(sys.modules, "celery", celery)
    monkeypatch.setenv("KOFM_ADDR", up.addr)
    spec = importlib.util.spec_from_file_location("celery_task", EXAMPLES / "celery_task.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    me = types.SimpleNamespace(request=types.SimpleNamespace(id="7"))
    assert len(module.train(me, 3)) == 1


def test_the_ray_example_holds_units(monkeypatch, up, capsys):
    def remote(kind):
        def method(bound):
            return types.SimpleNamespace(remote=bound)

        def make(*args):
            made = kind(*args)
            names = [it for it in dir(kind) if not it.startswith("_")]
            return types.SimpleNamespace(**{it: method(getattr(made, it)) for it in names})

        return types.SimpleNamespace(remote=make)

    ray = types.ModuleType("ray")
    ray.remote, ray.get, ray.init = remote, lambda it: it, lambda: None
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("KOFM_ADDR", up.addr)
    spec = importlib.util.spec_from_file_location("ray_actor", EXAMPLES / "ray_actor.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    assert capsys.readouterr().out.endswith("2\n")


def test_the_notebook_runs(monkeypatch, up):
    monkeypatch.setenv("KOFM_ADDR", up.addr)
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text())
    names: dict = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "notebook", "exec"), names)
    assert not kofm.Client(up.addr).leases()
