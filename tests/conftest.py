"""What all tests share: checked types, steady examples, one compilation cache, datasets that are built once.

With `--typecheck` the types and shapes of the arguments of every function are checked while tests run. Property tests
draw the same examples on every run, so that a change is to blame for a failure; to search for new ones, set
HYPOTHESIS_PROFILE=default.
"""

from __future__ import annotations

import fcntl
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

# Compiled programs are shared by the processes of a run, those that tests start included, and by later runs. JAX reads
# these when it is imported.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Programs compile in about half of the time with few of LLVM's optimizations and with XLA's older code for fusions.
# Level 0 compiles faster, but orders then take much longer (docs/log.md). Orders do not depend on these options:
# the golden orders were recorded without them, and `test_compilation.py` compares orders of programs compiled with
# and without them. XLA_FLAGS="" runs the tests with the programs of users.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
    # jaxlib 0.11 has only the newer code.
    + " --xla_cpu_use_fusion_emitters=false"
    * version("jaxlib").startswith(("0.7.", "0.8.", "0.9.", "0.10.")),
)

import pytest
from hypothesis import settings

from tests.support.typechecker import begin_test, check_package

settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

MakeFolder = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """Make a folder once in a run, in the process that asks first; the others wait. Tests must not change it."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the processes' common folder

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        folder, done = base / "shared" / name, base / "shared" / f"{name}.done"
        folder.parent.mkdir(exist_ok=True)
        with (base / "shared" / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                fill(folder)
                done.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_dataset(make_once: MakeFolder) -> Path:
    """A whole dataset of 400 small documents, built as `jax-diversity build` does; its corpus lies beside it."""
    from jax_diversity.pipeline.build import Build
    from tests.support.tiny_corpus import tiny_config, write_corpus

    def fill(folder: Path) -> None:
        Build(tiny_config(write_corpus(folder / "corpus"), folder / "dataset")).run_all()

    return make_once("tiny", fill) / "dataset"


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Calls without type checks, as a user's: the code itself must refuse wrong arguments."""
    import jaxtyping

    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--typecheck", action="store_true", help="check the types of all calls of the functions")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--typecheck"):
        check_package("jax_diversity")
        check_package("evidence")


@pytest.hookimpl(tryfirst=True)  # before the option -m selects cases
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but the first cases of a test with the marker `first` as `campaign`."""
    num_cases = Counter[tuple[str, str]]()
    for item in items:
        marker = item.get_closest_marker("first")
        test = item.path.as_posix(), item.originalname if isinstance(item, pytest.Function) else item.name
        num_cases[test] += 1
        if marker is not None and num_cases[test] > marker.args[0]:
            item.add_marker("campaign")


def pytest_runtest_setup() -> None:
    begin_test()


def pytest_collection_finish() -> None:
    """Collect garbage less often, and never walk through what all modules hold: JAX traces make many objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 10)


@pytest.fixture(autouse=True, scope="module")
def forget_programs() -> Iterator[None]:
    """Forget compiled programs before they take all memory maps of a process: Linux allows 65,530, then XLA crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > 20_000:
        import jax

        jax.clear_caches()
        gc.collect()
