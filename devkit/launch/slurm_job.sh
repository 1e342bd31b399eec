# ---- from here on the script is the same for every job -------------------------------------------------------------
# A Ray over the nodes of the job, with debugging on and a token of its own; then the command; then its end, in order.

say() { printf 'devkit: %s\n' "$*" >&2; }

fail() { # EXIT_CODE ERROR HINT
    printf 'error: %s\nhint: %s\n' "$2" "$3" >&2
    exit "$1"
}

# ---- what runs on a node: travels there as text, for only the first node has this script ---------------------------

# Slurm's GPU plugin sets CUDA_, HIP_ and ROCR_VISIBLE_DEVICES. ROCR_ hides devices from HIP and renumbers what is left,
# so that HIP_ with the same numbers names devices that are not there; and Ray refuses ROCR_. HIP_ alone stays.
rocm_environment() {
    export HIP_VISIBLE_DEVICES="${HIP_VISIBLE_DEVICES:-${ROCR_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES-}}}"
    [ -n "$HIP_VISIBLE_DEVICES" ] || unset HIP_VISIBLE_DEVICES
    unset ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES
    local setting name
    for setting in GPU_MAX_HW_QUEUES=2 TORCH_NCCL_HIGH_PRIORITY=1 NCCL_CHECKS_DISABLE=1 NCCL_CROSS_NIC=0 \
        NCCL_PROTO=Simple RCCL_MSCCL_ENABLE=0 CUDA_DEVICE_MAX_CONNECTIONS=1 TOKENIZERS_PARALLELISM=false \
        HSA_NO_SCRATCH_RECLAIM=1; do
        name=${setting%%=*}
        [ -n "${!name+set}" ] || export "${setting?}"
    done
}

# The numbers of the GPUs that Slurm gave, as the node counts them: where Slurm hides the others, CUDA_VISIBLE_DEVICES
# counts from 0 again, and a container's daemon sees them all.
gpu_numbers() {
    local part
    for part in $(tr , ' ' <<< "${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:-${CUDA_VISIBLE_DEVICES-}}}"); do
        case $part in *-*) seq "${part%-*}" "${part#*-}" ;; *) printf '%s\n' "$part" ;; esac
    done
}

# The names of the variables that a container gets, beside those of --env: their values stay off the command line.
container_variables() {
    compgen -e | grep -E '^(RAY_AUTH_MODE|RAY_AUTH_TOKEN|(NCCL|RCCL|GLOO|UCX|FI|HSA|HF|WANDB|TORCH|OMP)_.*)$'
    [ "$ROCM" = 0 ] || printf '%s\n' GPU_MAX_HW_QUEUES CUDA_DEVICE_MAX_CONNECTIONS TOKENIZERS_PARALLELISM
    [ "${#VARIABLES[@]}" = 0 ] || printf '%s\n' "${VARIABLES[@]}"
}

# Sets INSIDE: the words before a devkit command that starts a container with it.
open_container() {
    local word numbers
    case $CONTAINER in
        docker | podman)
            "$CONTAINER" rm -f "$NAME" > /dev/null 2>&1
            INSIDE=("$CONTAINER" run --rm --init --name "$NAME" --network=host --ipc=host --cap-add=SYS_PTRACE)
            for word in "$PWD:$PWD" "${MOUNTS[@]}"; do INSIDE+=(-v "$word"); done
            for word in $(container_variables); do INSIDE+=(-e "$word"); done
            [ ! -e /dev/infiniband ] || INSIDE+=(--device=/dev/infiniband --ulimit=memlock=-1)
            numbers=$(gpu_numbers | paste -sd,)
            if [ "$ROCM" = 1 ]; then
                INSIDE+=(--device=/dev/kfd --device=/dev/dri --group-add=video --security-opt=seccomp=unconfined)
                INSIDE+=(-e "HIP_VISIBLE_DEVICES=$numbers")
            elif [ -n "$numbers" ] && [ "$CONTAINER" = docker ]; then
                INSIDE+=(--gpus "\"device=$numbers\"")
            else
                for word in ${numbers//,/ }; do INSIDE+=("--device=nvidia.com/gpu=$word"); done
            fi
            INSIDE+=("${CONTAINER_OPTIONS[@]}" -w "$PWD" --entrypoint="${DEVKIT[0]}" "$IMAGE" "${DEVKIT[@]:1}")
            ;;
        enroot)
            local archive=$IMAGE folder='' code=0
            if [ ! -f "$IMAGE" ]; then # into a folder of our own: the job's number is no secret, and /tmp is everybody's
                folder=$(mktemp -d "${TMPDIR:-/tmp}/$NAME.XXXXXX") || return
                archive=$folder/image.sqsh
                enroot import --output "$archive" "$IMAGE" >&2 || code=$?
            fi
            [ "$code" != 0 ] || enroot create --force --name "$NAME" "$archive" >&2 || code=$?
            [ -z "$folder" ] || rm -rf "$folder"
            [ "$code" = 0 ] || return "$code"
            enter_container
            ;;
        *) INSIDE=("${DEVKIT[@]}") ;; # with pyxis this already runs in the container
    esac
}

# Sets INSIDE: the words before a devkit command that runs it beside the node, in its container.
enter_container() {
    local word
    case $CONTAINER in
        docker | podman) INSIDE=("$CONTAINER" exec -e RAY_ADDRESS -w "$PWD" "$NAME" "${DEVKIT[@]}") ;;
        enroot) # one root folder, the node's network, processes and /tmp: a second start is beside the first
            INSIDE=(enroot start --rw)
            for word in "$PWD:$PWD" /tmp:/tmp "${MOUNTS[@]}"; do INSIDE+=(--mount "$word"); done
            for word in $(container_variables) RAY_ADDRESS; do INSIDE+=(--env "$word"); done
            INSIDE+=("${CONTAINER_OPTIONS[@]}" "$NAME" "${DEVKIT[@]}")
            ;;
        *) INSIDE=("${DEVKIT[@]}") ;;
    esac
}

node_environment() {
    [ "$ROCM" = 0 ] || rocm_environment
    # A folder for each node: a home that all nodes share would mix what they note there.
    export DEVKIT_HOME="$FOLDER/$SLURMD_NODENAME"
    mkdir -p -m 700 "$DEVKIT_HOME" 2> /dev/null || DEVKIT_HOME=$(mktemp -d "/tmp/$NAME.XXXXXX")
}

start_node() { # [GCS_ADDRESS_OF_THE_HEAD]
    node_environment
    open_container || { echo "error: $CONTAINER cannot make a container of $IMAGE" >&2; return 1; }
    local words=(debug-cluster --block --json --timeout "$TIMEOUT")
    if [ -n "$1" ]; then words+=(--join "$1"); else words+=(--dashboard-host "$DASHBOARD_HOST"); fi
    [ -z "${SLURM_CPUS_ON_NODE-}" ] || words+=(--num-cpus "$SLURM_CPUS_ON_NODE")
    [ -z "${SLURM_GPUS_ON_NODE-}" ] || words+=(--num-gpus "$SLURM_GPUS_ON_NODE")
    exec "${INSIDE[@]}" "${words[@]}"
}

beside_node() { # DEVKIT_WORDS...
    node_environment
    enter_container
    exec "${INSIDE[@]}" "$@"
}

# ---- what runs here, on the first node -----------------------------------------------------------------------------

# A step on one node. --overlap, else a second step on a node waits until the first has ended; --cpu-bind=none, else a
# step of one task may be held on one core; --export=ALL, else a job of `sbatch --export=NONE` passes no token on.
step() { # NODE FUNCTION WORDS...
    local node=$1 settings
    shift
    settings=$(declare -p DEVKIT TIMEOUT DASHBOARD_HOST CONTAINER IMAGE MOUNTS CONTAINER_OPTIONS VARIABLES ROCM NAME FOLDER)
    local words=(srun --overlap --export=ALL "${BIND[@]}" --nodes=1 --ntasks=1 --nodelist="$node" --job-name="$1" --quiet)
    if [ "$CONTAINER" = pyxis ]; then
        words+=(--container-image="$IMAGE" --container-name="$NAME" --container-workdir="$PWD" --no-container-entrypoint)
        words+=(--container-mounts="$(IFS=,; echo "$PWD:$PWD,/tmp:/tmp${MOUNTS[*]:+,${MOUNTS[*]}}")" "${CONTAINER_OPTIONS[@]}")
    fi
    exec "${words[@]}" bash -c "$settings; $(declare -f); \"\$@\"" devkit "$@" < /dev/null
}

declare -A STEPS=() # node -> the srun that keeps it

begin() { # NODE [GCS_ADDRESS]
    step "$1" start_node "${2-}" > "$FOLDER/$1.json" 2> "$FOLDER/$1.log" &
    STEPS[$1]=$!
}

is_up() { grep -q '"gcs_address".*}$' "$FOLDER/$1.json"; }

why_not() { # NODE: Slurm's state of it, and what was last heard of it
    local words
    words=$(grep -v -e '^hint:' -e '^srun: error: .*: task [0-9]*: ' "$FOLDER/$1.log" | grep '[[:alpha:]]' | tail -n 1)
    printf '%s (Slurm: %s; its last output: %s)' "$1" "$(sinfo -h -n "$1" -o %T 2> /dev/null | head -n 1)" "${words:-nothing}"
}

wait_for() { # NODES...: until each is up; fails at the deadline, and as soon as one has ended
    local node missing
    while :; do
        missing=()
        for node in "$@"; do
            is_up "$node" && continue
            missing+=("$(why_not "$node")")
            kill -0 "${STEPS[$node]}" 2> /dev/null && continue
            is_up "$node" || fail 1 "no Ray on node $(why_not "$node")" "its full log: $FOLDER/$node.log"
        done
        [ "${#missing[@]}" = 0 ] && return
        ((SECONDS < DEADLINE)) ||
            fail 4 "after $TIMEOUT s ${#missing[@]} of ${#NODES[@]} nodes are missing: $(IFS=,; echo "${missing[*]}")" \
                "scontrol show node says what Slurm knows of a node; --timeout waits longer"
        sleep 0.2
    done
}

field() { sed -n 's/.*"'"$2"'": *"\([^"]*\)".*/\1/p' "$FOLDER/$1.json" | tail -n 1; }

tell_ended() { # a node that has ended is more of a reason than what its end did to the command
    local node
    for node in "${NODES[@]}"; do
        kill -0 "${STEPS[$node]}" 2> /dev/null || say "Ray has exited on a node: $(why_not "$node")"
    done
}

# SIGTERM to what runs in the steps: a node ends its Ray in order then. Sent to an srun it would kill them at once.
end_nodes() {
    squeue --steps -h -j "$SLURM_JOB_ID" -o '%i %j' 2> /dev/null | while read -r id name; do
        [ "$name" != start_node ] || scancel --signal=TERM "$id" 2> /dev/null
    done
}

finish() {
    local code=$? node
    trap - EXIT
    trap '' TERM INT
    rm -f "$FOLDER/token" "$FOLDER/env"
    [ -z "${COMMAND-}" ] || kill -TERM "$COMMAND" 2> /dev/null
    [ "${#STEPS[@]}" = 0 ] || end_nodes
    local until=$((SECONDS + 25))
    for node in "${!STEPS[@]}"; do
        while kill -0 "${STEPS[$node]}" 2> /dev/null && ((SECONDS < until)); do sleep 0.2; done
        kill -KILL "${STEPS[$node]}" 2> /dev/null
    done
    case $CONTAINER in
        docker | podman) timeout 30 srun --overlap --quiet "$CONTAINER" rm -f "$NAME" ;;
        enroot) timeout 30 srun --overlap --quiet enroot remove --force "$NAME" ;;
    esac > /dev/null 2>&1 < /dev/null
    if [ "$code" = 0 ]; then rm -rf "$FOLDER"; else say "logs of the nodes: $FOLDER"; fi
    exit "$code"
}

prepare() {
    [ -n "${SLURM_JOB_ID-}" ] ||
        fail 2 "not running in a Slurm job: SLURM_JOB_ID is not set" "sbatch $0, or devkit launch slurm --submit"
    umask 077
    local base="${DEVKIT_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/devkit}/slurm" number=1
    mkdir -p "$base" || fail 1 "cannot create the folder $base" "choose another one with DEVKIT_HOME"
    FOLDER=$base/$SLURM_JOB_ID
    until mkdir "$FOLDER" 2> /dev/null || ((number > 99)); do FOLDER=$base/$SLURM_JOB_ID.$((++number)); done
    NAME=devkit-${FOLDER##*/}
    trap finish EXIT
    trap 'exit 143' TERM
    trap 'exit 130' INT
    # The token: of this job alone, made here, handed on in the environment of the steps, never in a command line. The
    # file is for a second shell on this node.
    RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(od -An -vtx1 -N32 /dev/urandom | tr -d ' \n')
    export RAY_AUTH_MODE RAY_AUTH_TOKEN
    unset RAY_ADDRESS RAY_AUTH_TOKEN_PATH
    printf '%s' "$RAY_AUTH_TOKEN" > "$FOLDER/token"
    BIND=() # an option that a cluster without a task plugin complains of
    ! scontrol show config | grep -q '^TaskPlugin *=.*\(affinity\|cgroup\)' || BIND=(--cpu-bind=none)
}

bring_up() {
    DEADLINE=$((SECONDS + TIMEOUT))
    local node
    begin "$HEAD"
    wait_for "$HEAD"
    RAY_ADDRESS=$(field "$HEAD" gcs_address)
    for node in "${NODES[@]:1}"; do begin "$node" "$RAY_ADDRESS"; done
    wait_for "${NODES[@]:1}"
    export RAY_ADDRESS
    (step "$HEAD" beside_node debug-cluster status --json > "$FOLDER/cluster.json" 2> "$FOLDER/status.log")
    {
        printf 'unset RAY_AUTH_TOKEN\nexport RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=%q RAY_ADDRESS=%q\n' \
            "$FOLDER/token" "$RAY_ADDRESS"
        printf 'devkit() { %s"$@"; }\n' "$(printf '%q ' "${DEVKIT[@]}")"
    } > "$FOLDER/env"
    scontrol update "jobid=$SLURM_JOB_ID" "comment=devkit $FOLDER" 2> /dev/null # for who waits for it elsewhere
    say "${#NODES[@]} nodes are up after $SECONDS s: ${NODES[*]}; head $HEAD at $RAY_ADDRESS, $(field "$HEAD" dashboard_url)"
    say "to look at it: srun --jobid=$SLURM_JOB_ID --overlap -w $HEAD --pty bash, then: . $FOLDER/env; devkit ps"
}

main() {
    prepare
    mapfile -t NODES < <(scontrol show hostnames "${SLURM_JOB_NODELIST-}")
    HEAD=${NODES[0]-}
    [ -n "$HEAD" ] || fail 1 "Slurm names no nodes for this job" "scontrol show job $SLURM_JOB_ID"
    bring_up
    if [ "${#CMD[@]}" = 0 ]; then
        say "no command: the cluster stays until the job ends (scancel $SLURM_JOB_ID)"
        wait -n "${STEPS[@]}"
        tell_ended
        exit 1
    fi
    step "$HEAD" beside_node run "${RUN_OPTIONS[@]}" -- "${CMD[@]}" &
    COMMAND=$!
    wait "$COMMAND"
    local code=$?
    [ "$code" = 0 ] || tell_ended
    exit "$code"
}

main
