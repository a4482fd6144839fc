"""Settings of a worker, the same for prefill and decode."""

from dataclasses import dataclass

from runtime import units
from runtime.service_settings import ServiceSettings
from runtime.settings import parse_bool, setting

NO_LIMIT = -1
"""As `local_prefill_tokens`: a decode worker that computes every prompt itself (`both`)."""

DTYPES = ("auto", "bfloat16", "float16", "float32")
DTYPE_ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
}
DEVICES = ("auto", "cpu", "cuda", "interpreter")
QUANTIZATIONS = ("none", "int8")
AUTO_LINK, BUS_LINK, SHM_LINK, GLOO_LINK, NCCL_LINK = LINKS = ("auto", "nats", "shm", "gloo", "nccl")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(ServiceSettings):
    """What a prefill or decode worker is told at start."""

    max_num_seqs: int = setting(
        units.integer(1, 65536),
        64,
        "sequences computed in one step. Raising it raises throughput and the gap between tokens",
        metavar="N",
    )
    max_num_batched_tokens: int = setting(
        units.integer(16, 1 << 20),
        512,
        "tokens computed in one step (prompts go in chunks of this). Raising it speeds prefill and "
        "lengthens the gap between tokens of streams in the same step",
        metavar="TOKENS",
    )
    gpu_memory_utilization: float = setting(
        units.fraction(0.0, 1.0),
        0.9,
        "share of the device's memory for weights and KV pool; on a CPU of the host's or cgroup's "
        "memory, divided by the workers on the host, the pool 2 GiB at the most. Raising it leaves "
        "less to others",
        metavar="SHARE",
    )
    kv_cache_memory_bytes: int | None = setting(
        units.num_bytes,
        None,
        "size of this worker's KV pool, instead of a share of memory. Raising it lets more run at "
        "once and costs that memory",
        metavar="SIZE",
    )
    auto_concurrency: int = setting(
        units.integer(1, 65536),
        4,
        "requests of the longest context that the pool has to hold at once, for --max-model-len auto. "
        "Raising it makes that context shorter",
        metavar="N",
    )
    enable_prefix_caching: bool = setting(
        parse_bool,
        True,
        "keep finished blocks for prompts that begin alike. Costs nothing but hashing; off gives "
        "repeatable cold timings",
    )
    dtype: str = setting(
        units.one_of(*DTYPES, aliases=DTYPE_ALIASES),
        "auto",
        "number format of weights and KV: auto (the model's), bfloat16, float16, float32. float32 "
        "costs twice the memory and time",
        metavar="TYPE",
    )
    quantization: str = setting(
        units.one_of(*QUANTIZATIONS),
        "none",
        "none, or int8: matrices and what they multiply in 8-bit integers, quantized at load, on a CPU. int8 halves "
        "the weights and up to doubles the speed; tokens differ a little from the model's own",
        metavar="METHOD",
    )
    device: str = setting(
        units.one_of(*DEVICES),
        "auto",
        "auto (cuda if present), cpu, cuda, or interpreter: the GPU's kernels on the CPU, to try them, extremely slow",
        metavar="DEVICE",
    )
    host: str = setting(
        units.text,
        "127.0.0.1",
        "address of the status port, and of --kv-link gloo. Any other than loopback shows status and metrics to the "
        "network",
        metavar="ADDRESS",
    )
    shutdown_timeout: float = setting(
        units.seconds(0.0, 7 * 24 * 3600.0),
        30.0,
        "seconds that a worker told to end may finish its work in; then it gives the rest back to be moved. "
        "Raising it lengthens restarts",
        metavar="SECONDS",
    )
    status_port: int = setting(
        units.integer(0, 65535),
        0,
        "port of /live /ready /metrics /debug/ledger; 0 takes any free one",
        metavar="PORT",
    )
    worker_id: str = setting(
        units.text,
        "",
        "name of this worker, unique in the deployment; its role is put in front where it is missing. Default: host "
        "and process id",
        metavar="ID",
    )
    num_threads: int = setting(
        units.integer(0, 4096),
        0,
        "compute threads on a CPU; 0 decides, step by step with --cores-file, else the host's cores divided by "
        "--host-workers. More than cores, over all workers, slows everything",
        metavar="N",
    )
    cores_file: str = setting(
        units.text,
        "",
        "file in memory that all workers of a host share: each says there whether it has work, and takes the cores "
        "that others leave. `up` makes one",
        metavar="FILE",
    )
    packed_dir: str = setting(
        units.text,
        "",
        "private directory that keeps the model's matrices in the order of the CPU's kernels: packed once, then mapped "
        "by all workers of the host, which start faster and hold them in memory once. `up` has one in its cache",
        metavar="DIR",
    )
    itl_limit_ms: float = setting(
        units.milliseconds(1.0, 60_000.0),
        50.0,
        "milliseconds between two tokens of a stream that a prompt beside it may cause: on a CPU prefill gives way to "
        "decode steps in time, and a worker that does both takes no more of a prompt in a step. When prompts queue, "
        "they get three times what a decode step takes. Raising it speeds prompts",
        metavar="MS",
    )
    enforce_eager: bool = setting(
        parse_bool,
        False,
        "launch a GPU's kernels one by one: no decode step is recorded as a CUDA graph. Slower with few sequences, but "
        "starts sooner and needs less memory; nothing changes on a CPU",
    )
    batch_invariant: bool = setting(
        parse_bool,
        False,
        "on a GPU compute each token's bits from its own context alone, so that batches, chunks and retries change "
        "none, as they never do on a CPU. Slower, and without CUDA graphs",
    )
    kv_link: str = setting(
        units.one_of(*LINKS),
        AUTO_LINK,
        "how block contents travel: auto (shared memory between workers that prove to share it, else NATS), nats, shm "
        "(shared memory alone: other pairs fail), gloo or nccl (a connection of each pair's own, neither encrypted nor "
        "authenticated, for a private network; NATS until it is there). NATS costs several times the CPU",
        metavar="LINK",
    )
    shm_dir: str = setting(
        units.text,
        "",
        "private directory in which the workers of a host find each other to share memory; without it contents go "
        "by NATS. `up` makes one",
        metavar="DIR",
    )
    shm_segment_bytes: int = setting(
        units.num_bytes,
        64 << 20,
        "most memory that this worker shares with others for contents on their way; what finds no room goes by NATS. "
        "Raising it costs that memory when several decode workers are slow",
        metavar="SIZE",
    )
    local_prefill_tokens: int = setting(
        units.integer(NO_LIMIT, 1 << 24),
        512,
        "uncached prompt tokens of one request that a decode worker may compute itself when there "
        "is no prefill worker; -1 no limit. Raising it lets long prompts stall running streams",
        metavar="TOKENS",
    )
    host_workers: int = setting(
        units.integer(1, 4096),
        1,
        "workers that share this host: its memory, and without --cores-file its cores. Raising it makes each one's "
        "pool smaller",
        metavar="N",
    )
