"""What can be seen of one node, and of a pair of nodes: plain values, which go over the wire as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gpu:
    """One GPU as its driver shows it, whoever may use it."""

    index: int
    name: str
    memory_mib: int  # in all
    used_mib: int
    uuid: str = ""


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    gpu: str  # the GPU's uuid
    used_mib: int
    command: str  # empty where it is in another container


@dataclass(frozen=True)
class Devices:
    """The GPUs and what drives them."""

    kind: str = ""  # "nvidia" | "amd"; empty without a GPU
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    driver: str = ""  # version of the kernel driver
    cuda: str = ""  # the newest CUDA that the driver takes, as in 12.4
    problem: str = ""  # what nvidia-smi says in place of an answer
    infiniband: tuple[str, ...] = ()  # active ports, as in "mlx5_0/1 InfiniBand 400 Gb/sec"


@dataclass(frozen=True)
class Software:
    """What is installed in the Python that the workers run."""

    python: str = ""
    executable: str = ""
    packages: dict[str, str] = field(default_factory=dict)  # name -> version; what is absent is left out
    torch_cuda: str = ""  # the CUDA that torch was built for; empty: a CPU build
    torch_hip: str = ""  # the ROCm that torch was built for


@dataclass(frozen=True)
class Tools:
    """What building a package from source needs."""

    gcc: str = ""  # version; empty: not on PATH
    nvcc: str = ""  # release, as in 12.4
    cargo: str = ""  # path
    cuda_home: str = ""  # where CUDA_HOME leads, or the usual place
    cuda_home_nvcc: bool = False  # whether bin/nvcc is there
    cudnn_header: str = ""  # the cudnn.h that was found


@dataclass(frozen=True)
class Disk:
    """The file system below a folder."""

    role: str  # "Ray's files" | "home" | "HF_HOME" | "temporary files"
    path: str
    total: int  # bytes
    free: int
    kind: str = ""  # ext4, nfs4, overlay ...
    error: str = ""  # why nothing can be written there
    identity: str = ""  # the same on two nodes where they share the folder


@dataclass(frozen=True)
class Limits:
    """What the system allows the workers."""

    open_files: int = 0  # soft limit; -1: none
    open_files_hard: int = 0
    shm_total: int = 0  # bytes of /dev/shm; 0: there is none
    shm_free: int = 0
    memory_total: int = 0  # bytes, of the machine or the container
    memory_available: int = 0
    cpus: int = 0  # that this process may use


@dataclass(frozen=True)
class Interface:
    """A network interface."""

    name: str
    up: bool
    loopback: bool
    addresses: tuple[str, ...]  # IPv4 and IPv6


@dataclass(frozen=True)
class Lookup:
    """A reverse look-up of an address, as torch makes one of every peer."""

    address: str
    seconds: float
    name: str  # empty: none was found
    finished: bool = True  # False: it took longer than `seconds`


@dataclass(frozen=True)
class Port:
    """A port of this node that something else already listens on."""

    port: int
    role: str  # whose it would be: "Ray's GCS", "MASTER_PORT" ...
    holder: str  # pid and command; empty if that may not be seen


@dataclass(frozen=True)
class Network:
    """Names, addresses and interfaces."""

    hostname: str = ""
    hostname_addresses: tuple[str, ...] = ()  # what the own name resolves to
    interfaces: tuple[Interface, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    ports: tuple[Port, ...] = ()
    reached: dict[str, str] = field(default_factory=dict)  # service -> "" or why it can't be reached from here


@dataclass(frozen=True)
class TokenFacts:
    """Where this user's token for Ray comes from. Never the token."""

    mode: str = ""  # RAY_AUTH_MODE
    source: str = ""  # the variable, or the path of the file; empty without a token
    digest: str = ""  # keyed with a secret of this run: equal where the tokens are
    file: str = ""  # ~/.ray/auth_token, if it is there
    open_to: str = ""  # the file's permissions, if others may read it


@dataclass(frozen=True)
class RetrieverFacts:
    """What a retriever said to this node."""

    url: str
    problem: str = ""  # why it is of no use; empty: it answers
    digest: str = ""  # of its corpus; empty: it does not say
    passages: int = 0
    found: str = ""  # a digest of what it finds for a few queries
    seconds: float = 0.0  # that these took
    encoder: str = ""  # the digest of the model by which it finds them; empty: by none, or it does not say


@dataclass(frozen=True)
class NodeFacts:
    """All that was seen on one node."""

    machine: str  # the same for two nodes on one machine
    software: Software = Software()
    tools: Tools = Tools()
    devices: Devices = Devices()
    limits: Limits = Limits()
    disks: tuple[Disk, ...] = ()
    network: Network = Network()
    token: TokenFacts = TokenFacts()
    environment: dict[str, str] = field(default_factory=dict)  # of the workers, before Ray changes it; only some names
    ray_arguments: tuple[str, ...] = ()  # flags of the raylet that matter
    retrievers: tuple[RetrieverFacts, ...] = ()  # of the command, if it has any
    unseen: dict[str, str] = field(default_factory=dict)  # probe -> why it gave nothing


@dataclass(frozen=True)
class Pair:
    """What a node saw when it connected to another one."""

    source: str  # node ids
    target: str
    address: str
    error: str = ""  # empty: reached
    latency_ms: float | None = None  # the best of several round trips of one byte
    mb_per_s: float | None = None  # of one TCP connection; 1 MB is 10^6 bytes
    segments: int = 0
    retransmitted: int = 0  # of these segments


@dataclass(frozen=True)
class Collective:
    """An all-reduce over all nodes."""

    backend: str  # gloo | nccl
    ranks: int
    status: str  # "done" | "failed" | "late": it hung | "unready": it did not get to start | "skipped"
    detail: str = ""  # why, in one line
    odd: tuple[str, ...] = ()  # the nodes that failed or did not answer, by id
    init_s: float = 0.0
    mb_per_s: float = 0.0  # bus bandwidth: 2 (n - 1) / n x bytes / seconds
    transport: str = ""  # what NCCL chose: "IB", "Socket", "P2P" ...
    import_errors: dict[str, str] = field(default_factory=dict)  # "package on node id" -> error
