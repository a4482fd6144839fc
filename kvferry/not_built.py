"""Flags that users of vLLM know and that aren't built here: refused in one line, never ignored."""

NOT_BUILT: dict[str, tuple[str, ...]] = {
    "tensor parallelism": ("--tensor-parallel-size", "-tp"),
    "pipeline parallelism": ("--pipeline-parallel-size", "-pp"),
    "data parallelism": (
        "--data-parallel-size",
        "-dp",
        "--data-parallel-size-local",
        "-dpl",
        "--data-parallel-rank",
        "--data-parallel-address",
        "--data-parallel-rpc-port",
        "--data-parallel-backend",
        "--api-server-count",
        "-asc",
        "--headless",
    ),
    "context parallelism": ("--decode-context-parallel-size", "-dcp"),
    "expert parallelism": (
        "--enable-expert-parallel",
        "-ep",
        "--all2all-backend",
        "--enable-eplb",
        "--enable-dbo",
    ),
    "choice of executor": ("--distributed-executor-backend", "--nnodes", "--node-rank"),
    "this short form of --quantization": ("-q",),
    "quantization of the KV cache": ("--calculate-kv-scales",),
    "another dtype for the KV cache": ("--kv-cache-dtype",),
    "another block size than 16": ("--block-size",),
    "LoRA": (
        "--enable-lora",
        "--lora-modules",
        "--max-loras",
        "--max-lora-rank",
        "--max-cpu-loras",
        "--fully-sharded-loras",
    ),
    "speculative decoding": ("--speculative-config", "-sc"),
    "choice of scheduling policy": (
        "--scheduling-policy",
        "--async-scheduling",
        "--max-num-partial-prefills",
        "--max-long-partial-prefills",
        "--long-prefill-token-threshold",
        "--preemption-mode",
        "--num-gpu-blocks-override",
    ),
    "a switch for chunked prefill (it is always on)": (
        "--enable-chunked-prefill",
        "--no-enable-chunked-prefill",
    ),
    "swapping and offloading": (
        "--swap-space",
        "--cpu-offload-gb",
        "--kv-offloading-size",
        "--kv-offloading-backend",
        "--enable-sleep-mode",
    ),
    "a switch for tool calling (it is always on)": ("--enable-auto-tool-choice",),
    "parsers of one's own": ("--tool-parser-plugin", "--reasoning-parser-plugin"),
    "a switch for reasoning (see --reasoning-parser)": ("--enable-reasoning",),
    "choice of the library for structured output": ("--structured-outputs-config", "--guided-decoding-backend"),
    "choice of chat template": (
        "--chat-template-content-format",
        "--default-chat-template-kwargs",
        "--response-role",
    ),
    "choice of tokenizer": (
        "--tokenizer",
        "--tokenizer-mode",
        "--tokenizer-revision",
        "--skip-tokenizer-init",
    ),
    "models of other kinds": (
        "--runner",
        "--convert",
        "--task",
        "--model-impl",
        "--trust-remote-code",
        "--hf-overrides",
        "--rope-scaling",
        "--rope-theta",
        "--limit-mm-per-prompt",
        "--mm-processor-kwargs",
        "--allowed-local-media-path",
    ),
    "choice of weights": (
        "--load-format",
        "--download-dir",
        "--revision",
        "--code-revision",
        "--hf-token",
        "--hf-config-path",
    ),
    "choice of sampling defaults": (
        "--generation-config",
        "--override-generation-config",
        "--seed",
        "--max-logprobs",
        "--logprobs-mode",
        "--logits-processors",
    ),
    "choice of graphs and compilation": (
        "--compilation-config",
        "-O",
        "--cuda-graph-sizes",
        "--attention-backend",
    ),
    "choice of link and events": ("--kv-transfer-config", "--kv-events-config"),
    "TLS": ("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs"),
    "changes to the HTTP server": (
        "--root-path",
        "--middleware",
        "--uds",
        "--enable-request-id-headers",
        "--enable-server-load-tracking",
        "--enable-prompt-tokens-details",
        "--enable-force-include-usage",
    ),
    "choice of what is logged": (
        "--enable-log-requests",
        "--disable-log-requests",
        "--disable-log-stats",
        "--max-log-len",
        "--uvicorn-log-level",
        "--disable-uvicorn-access-log",
        "--otlp-traces-endpoint",
        "--collect-detailed-traces",
        "--show-hidden-metrics-for-version",
    ),
}

_FEATURES = {flag: feature for feature, flags in NOT_BUILT.items() for flag in flags}


def feature_of(flag: str) -> str | None:
    """Return what `flag` would ask for if it isn't built, else None.

    A nested form (``--speculative-config.model``) counts as the flag, a negation
    (``--no-enable-lora``) too.
    """
    name = flag.split("=", 1)[0].split(".", 1)[0]
    return _FEATURES.get(name) or _FEATURES.get(name.replace("--no-", "--", 1))
