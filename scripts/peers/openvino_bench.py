"""OpenVINO GenAI under the load of `kvferry bench`, in one process: its continuous batching pipeline has no server.

    python openvino_bench.py --name NAME --folder EXPORTED --tokenizer MODEL [flags of `kvferry bench`]

Workloads, prompts, loops, figures and reports are the room `bench`'s own; only what would cross HTTP is handed over in
memory, as the events that a server would send. So TTFT and gaps lack what HTTP, tokenizing and text cost: the pipeline
gets token ids (made before a request's clock starts) and its ids are counted, not turned into text. A step holds the
interpreter's lock, so a request that falls due during one enters after it; its clock starts when it was due. The KV
cache has 8 bits, the pipeline's default.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import openvino
from openvino_genai import (
    ContinuousBatchingPipeline,
    GenerationConfig,
    GenerationStatus,
    SchedulerConfig,
)
from tokenizers import Tokenizer

from bench import machine
from bench.campaign import SETTLE_S, WARMUP_PROMPT_LENS, Run
from bench.client import Ask
from bench.errors import BenchError
from bench.figures import figures_of
from bench.flags import add_flags, settings_from
from bench.load import Load, send
from bench.passages import Passages, load_passages
from bench.progress import Progress
from bench.recording import Recording
from bench.report import report
from bench.requests import Requests
from bench.results import results, write_results
from bench.settings import Settings
from bench.workload import Workload

CACHE_GB = 4
MAX_NUM_SEQS = 64
WARMUP_OUTPUT_LEN = 8
TOKEN = b'data: {"choices": [{"text": " x", "finish_reason": null}]}\n\n'


@dataclass(slots=True, eq=False)
class Request:
    """One request on its way through the pipeline's thread."""

    ids: list[int]
    recording: Recording
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    handle: Any = None
    output_len: int = 0
    is_left: bool = False


@dataclass(slots=True)
class Pipeline:
    """The pipeline and the one thread that steps it; stands where `bench` has its HTTP client."""

    folder: Path
    tokenizer: Tokenizer
    num_batched_tokens: int
    num_threads: int
    _new: deque[Request] = field(default_factory=deque)
    _wake: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Load the model and begin to step."""
        scheduler = SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.enable_prefix_caching = True
        scheduler.max_num_seqs = MAX_NUM_SEQS
        scheduler.max_num_batched_tokens = self.num_batched_tokens
        scheduler.dynamic_split_fuse = True
        properties = {"INFERENCE_NUM_THREADS": self.num_threads}
        pipe = ContinuousBatchingPipeline(self.folder, scheduler, "CPU", properties)
        threading.Thread(target=self._run, args=(pipe,), daemon=True).start()

    async def ask(self, body: bytes, recording: Recording) -> None:
        """Send one request and record its answer until it ends."""
        ids = self.tokenizer.encode(json.loads(body)["prompt"], add_special_tokens=False).ids
        loop = asyncio.get_running_loop()
        request = Request(ids, recording, loop, loop.create_future())
        recording.sent_s = recording.due_s or time.perf_counter()
        self._new.append(request)
        self._wake.set()
        try:
            await request.done
        except asyncio.CancelledError:
            request.is_left = True
            raise
        recording.end_s = time.perf_counter()

    def _run(self, pipe: ContinuousBatchingPipeline) -> None:
        live: list[Request] = []
        try:
            self._step_on(pipe, live)
        except Exception as error:  # whoever waits hears of it, and the run ends by it
            for request in [*live, *self._new]:
                request.loop.call_soon_threadsafe(_finish, request.done, error)
            raise

    def _step_on(self, pipe: ContinuousBatchingPipeline, live: list[Request]) -> None:
        number = 0
        while True:
            if not live and not self._new:
                self._wake.wait()
            self._wake.clear()
            while self._new:
                request = self._new.popleft()
                live.append(request)
                ids = openvino.Tensor(numpy.array([request.ids], dtype=numpy.int64))
                request.handle = pipe.add_request(number, ids, greedy(request.recording.output_len))
                number += 1
            pipe.step()
            now = time.perf_counter()
            live[:] = [request for request in live if not read(request, now)]


def greedy(output_len: int) -> GenerationConfig:
    """Return what asks for exactly so many tokens."""
    return GenerationConfig(max_new_tokens=output_len, min_new_tokens=output_len, ignore_eos=True, do_sample=False)


def read(request: Request, now: float) -> bool:
    """Hand on what the last step brought; return whether the request is over."""
    handle, tell = request.handle, request.loop.call_soon_threadsafe
    if request.is_left:
        handle.cancel()
        return True
    while handle.can_read():
        for output in handle.read().values():
            for _ in output.generated_ids:
                request.output_len += 1
                tell(request.recording.add, now, TOKEN)
    if handle.get_status() == GenerationStatus.RUNNING:
        return False
    tell(request.recording.add, now, last_event(len(request.ids), request.output_len))
    tell(_finish, request.done, None)
    return True


def last_event(prompt_len: int, output_len: int) -> bytes:
    """Return the event that ends an answer."""
    usage = {"prompt_tokens": prompt_len, "completion_tokens": output_len}
    return b"data: %s\n\n" % json.dumps({"choices": [{"text": "", "finish_reason": "length"}], "usage": usage}).encode()


def _finish(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # nobody waits any more
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


async def measure(settings: Settings, passages: Passages, pipeline: Pipeline, progress: Progress) -> None:
    """Run every workload in every round, after a warm-up."""
    target, listener = settings.targets[0], progress.listener()
    quiet = Load(pipeline, lambda num_done: None)  # type: ignore[arg-type]

    def requests(workload: Workload, seed: int) -> Requests:
        return Requests(settings, passages, target.name, workload, target.name, seed)

    warm = requests(Workload(name="warm-up"), settings.seeds[0])
    lens = [WARMUP_PROMPT_LENS[number % len(WARMUP_PROMPT_LENS)] for number in range(settings.num_warmups)]
    await quiet.closed([warm.ask(length, WARMUP_OUTPUT_LEN) for length in lens], 4)
    for workload in settings.workloads:
        for number, seed in enumerate(settings.seeds):
            made = requests(workload, seed)
            asks, longs, prime = made.asks(), made.longs(), made.prime()
            await quiet.closed([prime] if prime else list[Ask](), 1)
            on_done = listener.on_start(workload, target, number, 0 if workload.num_streams else len(asks))
            sent = await send(Load(pipeline, on_done), workload, asks, longs)  # type: ignore[arg-type]
            sent = replace(sent, generator_cpu_s=0.0)  # this process's time is mostly the pipeline's
            figures = figures_of(sent, settings.limits)
            listener.on_run(Run(workload, target, target.name, seed, 0, sent, figures))
            await asyncio.sleep(SETTLE_S)


def main() -> None:
    """Measure and report."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=about, allow_abbrev=False)
    parser.add_argument("--name", required=True, help="in the report")
    parser.add_argument("--folder", required=True, type=Path, help="the exported model")
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048, help="of one step [default 2048]")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="[default: one a core]")
    add_flags(parser)
    flags = parser.parse_args()
    flags.base_url = [f"{flags.name}=http://in-process"]
    try:
        settings = settings_from(flags, {})
        if settings.tokenizer is None or settings.is_chat or settings.plot_folder:
            raise BenchError("--tokenizer is needed; there are no chats and no plots here")
        run(settings, settings.tokenizer, flags)
    except BenchError as error:
        sys.exit(f"openvino_bench: {error}")


def run(settings: Settings, folder: Path, flags: argparse.Namespace) -> None:
    """Load, measure, print, write."""
    passages = load_passages(folder, settings.dataset)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    pipeline = Pipeline(flags.folder, tokenizer, flags.max_num_batched_tokens, flags.threads)
    started = time.perf_counter()
    pipeline.start()
    progress = Progress(sys.stderr, len(settings.seeds))
    progress.say(f"loaded in {time.perf_counter() - started:.1f} s")
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        asyncio.run(measure(settings, passages, pipeline, progress))
    finally:
        progress.close()
    print(report(progress.runs, settings))
    seeds = ",".join(map(str, settings.seeds))
    print(f"{started_at}, openvino {openvino.__version__}, {flags.threads} threads, seeds {seeds}")
    if settings.json_path:
        write_results(settings.json_path, results(progress.runs, settings, machine.describe(), started_at))


if __name__ == "__main__":
    main()
