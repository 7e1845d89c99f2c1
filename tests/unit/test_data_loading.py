import functools
import multiprocessing
import os
import resource
import signal
import tempfile
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from modelhound.data import Batch, Dataset, OwnTransform, Preprocessing, load_batches, loader_processes, open_dataset
from modelhound.data.loading import _Batches, _choose_workers, _make_loader, _Manner
from modelhound.data.preprocessing import make_transform
from modelhound.errors import DataError, ModelError, RequestError, is_out_of_memory
from modelhound.launch.environment import child_environment
from warm_workers import ForkedProcess

PREPROCESSING = Preprocessing(
    input_size=(32, 32),
    interpolation="bilinear",
    crop_fraction=1.0,
    crop_mode="center",
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)


@pytest.fixture
def photos(tmp_path: Path) -> Dataset:
    generator = np.random.default_rng(0)
    for number in range(70):
        path = tmp_path / "photos" / "abc"[number % 3] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    return open_dataset(str(tmp_path / "photos"))


def images_of(batch: Batch) -> torch.Tensor:
    assert isinstance(batch.inputs, torch.Tensor)
    return batch.inputs


def path_of(dataset: Dataset, index: int) -> Path:
    return Path(dataset.name, dataset.item_names[index])


@pytest.mark.parametrize("workers", [None, 0, 1, 3])
def test_all_items_come_in_order_whatever_the_number_of_workers(photos: Dataset, workers: int | None) -> None:
    batches = list(load_batches(photos, PREPROCESSING, batch=16, workers=workers))
    assert [len(batch) for batch in batches] == [16, 16, 16, 16, 6]
    images, labels = torch.cat([images_of(batch) for batch in batches]), torch.cat([batch.targets for batch in batches])
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert labels.tolist() == photos.targets.tolist()
    transform = make_transform(PREPROCESSING)
    assert torch.equal(images, torch.stack([transform(photos.read(index)) for index in range(70)]))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_keeps_the_shape_of_images_is_told_what_to_do(tmp_path: Path, workers: int) -> None:
    for number, side in enumerate((20, 20, 20, 28) * 2):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (side, 20)).save(path)
    form = OwnTransform(transform=_keep_shape, input_size=(20, 20))
    with pytest.raises(ModelError, match=r"made \(3, 20, 20\) of .* and \(3, 20, 28\) of 'b/3\.png'; let it crop"):
        list(load_batches(open_dataset(str(tmp_path)), form, batch=8, workers=workers))


def test_memory_that_a_batch_does_not_get_is_not_blamed_on_processes_that_are_not_there(photos: Dataset) -> None:
    form = OwnTransform(transform=_promise_much, input_size=(1 << 20, 1 << 20))
    with pytest.raises(RuntimeError) as caught:
        list(load_batches(photos, form, batch=16, workers=0))
    assert is_out_of_memory(caught.value)


def _promise_much(image: Image.Image) -> torch.Tensor:
    """Terabytes once it is copied, and a single number as it is."""
    return torch.zeros(1, 1, 1).expand(3, 1 << 20, 1 << 20)


def _keep_shape(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


def test_spawned_workers_give_the_same_batches(photos: Dataset) -> None:
    """Under spawn a worker has only what was pickled, and imports the rest by itself."""
    expected = list(load_batches(photos, PREPROCESSING, batch=40, workers=0))
    usual = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        spawned = list(load_batches(photos, PREPROCESSING, batch=40, workers=1))
    finally:
        multiprocessing.set_start_method(usual, force=True)
    assert len(spawned) == 2
    assert all(torch.equal(images_of(one), images_of(other)) for one, other in zip(spawned, expected, strict=True))


def test_a_batch_larger_than_the_data_is_one_batch(photos: Dataset) -> None:
    (batch,) = load_batches(photos, PREPROCESSING, batch=1000, workers=2)
    assert images_of(batch).shape == (70, 3, 32, 32)
    assert batch.targets.shape == (70,)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_goes_bad_after_the_check_is_named(photos: Dataset, workers: int) -> None:
    path_of(photos, 40).write_bytes(b"")
    batches = load_batches(photos, PREPROCESSING, batch=16, workers=workers)
    assert len(next(batches)) == len(next(batches)) == 16
    with pytest.raises(DataError, match=r"photos.*empty") as caught:
        next(batches)
    assert repr(photos.item_names[40]) in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [0, 2])
def test_whatever_goes_wrong_in_a_worker_is_a_data_error(photos: Dataset, workers: int) -> None:
    broken = replace(photos, reader=photos.reader.select([0]))  # all but the first read beyond the end
    with pytest.raises(DataError, match="IndexError"):
        list(load_batches(broken, PREPROCESSING, batch=16, workers=workers))


def test_workers_end_when_the_caller_stops_early(photos: Dataset) -> None:
    for _ in load_batches(photos, PREPROCESSING, batch=4, workers=2):
        assert len(multiprocessing.active_children()) == 2
        break
    assert not multiprocessing.active_children()


def test_workers_end_when_the_caller_fails(photos: Dataset) -> None:
    def use() -> None:
        for _ in load_batches(photos, PREPROCESSING, batch=4, workers=2):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert not multiprocessing.active_children()


def test_no_process_starts_before_the_first_batch_is_asked_for(photos: Dataset) -> None:
    batches = load_batches(photos, PREPROCESSING, batch=4, workers=2)
    assert not multiprocessing.active_children()
    del batches


ENDLESS = """
import multiprocessing
from modelhound.data import Preprocessing, load_batches, open_dataset
data = open_dataset({name!r})
while True:
    for number, _ in enumerate(load_batches(data, {preprocessing!r}, batch=4, workers=2)):
        if number == 0:
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
"""


def test_ctrl_c_ends_all_workers_and_they_print_nothing(photos: Dataset) -> None:
    code = ENDLESS.format(name=photos.name, preprocessing=PREPROCESSING)
    with (
        tempfile.TemporaryFile() as words,
        ForkedProcess(exec, code, {}, environment=child_environment(), words=words) as program,
    ):
        for _ in range(2):
            pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 2
        os.killpg(program.pid, signal.SIGINT)  # a terminal's Ctrl-C goes to all processes of a group
        assert program.wait(30) != 0
        pids += [int(pid) for line in program.stdout.read().splitlines() for pid in line.split()]
        words.seek(0)
        errors = words.read().decode()
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert not [pid for pid in pids if Path("/proc", str(pid)).exists()]


class InterruptedLock:
    """Ctrl-C comes in the moment in which it has been released."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._is_first = True

    def release(self) -> None:
        self._lock.release()
        if self._is_first:
            self._is_first = False
            raise KeyboardInterrupt


def test_a_worker_hears_of_its_end_where_ctrl_c_came_while_it_was_sent_work(
    photos: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not is ended after 5 seconds, and then the next."""
    manner = _Manner(num_workers=2, prefetch=1, pin=False, persistent=False, passes=1)
    iterator: Any = iter(_make_loader(_Batches(photos, PREPROCESSING, 4), manner))
    for sending in iterator._index_queues:
        asleep = sending._notempty._waiters
        while not asleep:
            time.sleep(0.001)
        asleep[0] = InterruptedLock(asleep[0])
        with pytest.raises(KeyboardInterrupt):
            sending.put((17, 17))
    ended: list[str] = []
    for worker in iterator._workers:
        monkeypatch.setattr(worker, "terminate", functools.partial(ended.append, worker.name))
    loader_processes.stop_workers(iterator)
    assert ended == []
    assert not multiprocessing.active_children()


def test_a_worker_that_is_stopped_is_given_up_after_a_while(photos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP: it does not die, it does not answer, and it takes no signal but SIGKILL."""
    monkeypatch.setattr(loader_processes, "_LOOK_SECONDS", 0.05)
    batches = load_batches(photos, PREPROCESSING, batch=4, workers=1)
    next(batches)
    monkeypatch.setattr(loader_processes, "_DEADLINE_SECONDS", 0.3)
    for child in multiprocessing.active_children():
        os.kill(child.pid or 0, signal.SIGSTOP)
    with pytest.raises(DataError, match=r"expected a batch within 0 s, but none came .*--workers 0"):
        for _ in batches:
            pass
    assert multiprocessing.active_children() == []
    assert "deadline of batches" not in {thread.name for thread in threading.enumerate()}


def test_a_stopped_worker_ends_with_whoever_stops_early(photos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
    batches = load_batches(photos, PREPROCESSING, batch=4, workers=1)
    next(batches)
    (child,) = multiprocessing.active_children()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    batches.close()  # type: ignore[attr-defined]
    child.join(5)
    assert child.exitcode == -signal.SIGKILL


def test_a_batch_for_which_there_is_no_shared_memory_is_a_data_error(photos: Dataset) -> None:
    """Python drops what it cannot hand over to another process, and goes on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))  # shared memory is a file, too
    try:
        with pytest.raises(DataError, match=r"exited unexpectedly; use --workers 0, or a smaller --batch"):
            list(load_batches(photos, PREPROCESSING, batch=4, workers=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_worker_whose_parent_was_killed_before_it_began_ends() -> None:
    worker = _fork(loader_processes.begin_worker, 0, parent=1)
    worker.join(60)
    assert worker.exitcode == 1


def test_a_worker_ends_with_the_process_that_started_it() -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def work(parent: int) -> None:
        loader_processes.begin_worker(0, parent=parent)
        sender.send(os.getpid())
        time.sleep(600)

    def start_worker() -> None:
        _fork(work, os.getpid()).join()

    starter = _fork(start_worker)
    sender.close()  # from here on only they hold that end
    worker = psutil.Process(receiver.recv())
    assert worker.is_running()
    starter.kill()
    assert receiver.poll(20)
    with pytest.raises(EOFError):
        receiver.recv()


def _fork(work: Any, *arguments: Any, **named: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments, kwargs=named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads
        process.start()
    return process


def test_a_killed_worker_is_a_data_error_with_advice(photos: Dataset) -> None:
    def kill_the_first_worker() -> None:
        while not (children := multiprocessing.active_children()):
            time.sleep(0.001)
        os.kill(children[0].pid or 0, signal.SIGKILL)

    slow = replace(PREPROCESSING, input_size=(2000, 2000))  # so that the first batch cannot come before the kill
    killer = threading.Thread(target=kill_the_first_worker)
    killer.start()
    with pytest.raises(DataError, match=r"cannot load .*killed.*--workers 0"):
        next(load_batches(photos, slow, batch=70, workers=1))
    killer.join()
    assert not multiprocessing.active_children()


def test_loading_leaves_the_random_state_and_the_signal_handlers_alone(photos: Dataset) -> None:
    torch.manual_seed(0)
    state, handler, filters = torch.get_rng_state(), signal.getsignal(signal.SIGINT), list(warnings.filters)
    list(load_batches(photos, PREPROCESSING, batch=16, workers=1))
    list(load_batches(photos, PREPROCESSING, batch=16, workers=0))
    assert torch.equal(torch.get_rng_state(), state)
    assert signal.getsignal(signal.SIGINT) is handler
    assert warnings.filters == filters


def test_embedded_data_is_loaded_without_processes() -> None:
    data = open_dataset("digits", limit=200)
    for _ in load_batches(data, PREPROCESSING, batch=16):
        assert not multiprocessing.active_children()


def test_more_workers_than_cores_are_no_warning(photos: Dataset) -> None:
    assert len(list(load_batches(photos, PREPROCESSING, batch=8, workers=6))) == 9


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"batch": 4, "workers": -1}])
def test_impossible_numbers_are_refused_at_once(photos: Dataset, wrong: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="expected"):
        load_batches(photos, PREPROCESSING, **wrong)  # type: ignore[arg-type]


def test_the_chosen_number_of_workers_fits_the_work_and_the_shared_memory(photos: Dataset) -> None:
    assert 1 <= _choose_workers(_Batches(photos, PREPROCESSING, 16)) <= 5
    assert _choose_workers(_Batches(photos, PREPROCESSING, 70)) == 1
    assert _choose_workers(_Batches(photos, replace(PREPROCESSING, input_size=(10**5, 10**5)), 60)) == 0
    assert _choose_workers(_Batches(open_dataset("digits", limit=100), PREPROCESSING, 16)) == 0


def test_beside_a_gpu_two_cores_are_left_to_the_threads_that_feed_it(
    photos: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for num_cores in (1, 2, 6):
        monkeypatch.setattr("modelhound.data.loading.count_cores", lambda num_cores=num_cores: num_cores)
        items = _Batches(photos, PREPROCESSING, 10)
        found.append((_choose_workers(items), _choose_workers(items, on_gpu=True)))
    assert found == [(1, 1), (2, 1), (6, 4)]
