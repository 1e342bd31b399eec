"""The parts of a remote engine that need no engine: groups of ranks, checksums, places of weights, messages, memory."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.trainer.stubbed import spec_of
from trainer.config import load
from trainer.config.check import setting_notes
from trainer.errors import ConfigError, EngineError
from trainer.rollout import memory, remote, sglang, versions, vllm, wire
from trainer.rollout.bucket import Bucket, Filler, open_handle, read
from trainer.rollout.handle import PartLost
from trainer.rollout.inside import Receiver, reports_in, write_report
from trainer.rollout.layout import Place, form_groups
from trainer.rollout.memory import GIB, Needed, Room
from trainer.rollout.regions import UnknownPlace, region_of
from trainer.rollout.remote import Limits, RemoteEngine
from trainer.rollout.server import PartSpec, show_gpus
from trainer.rollout.sums import Sums, factors, matrix, results, sums_of
from trainer.rollout.wire import Finding, Load, Look, Report, Slot, Standing, whole_sums

# ------------------------------------------------------------------------------------------------------------- groups


def places(per_node: int, nodes: int) -> list[Place]:
    return [
        Place(rank, f"n{rank // per_node}", f"10.0.0.{rank // per_node}", str(rank % per_node))
        for rank in range(per_node * nodes)
    ]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 8))
def test_groups_take_the_ranks_in_order(per_node: int, nodes: int, size: int) -> None:
    world = places(per_node, nodes)
    try:
        groups = form_groups(world, size)
    except ValueError:
        assert len(world) % size or (size % per_node and per_node % size)
        return
    assert [rank for group in groups for rank in group.ranks] == list(range(len(world)))
    for group in groups:
        assert len(group.ranks) == size and group.leader == group.ranks[0]
        assert [part.node_rank for part in group.parts] == list(range(len(group.parts)))
        for part in group.parts:
            assert len({place.node_id for place in part.places}) == 1
            assert len(part.places) == size // len(group.parts)


def test_a_group_that_spans_nodes_has_a_part_on_each() -> None:
    (group,) = form_groups(places(2, 2), 4)
    assert [(part.owner, part.gpus) for part in group.parts] == [(0, "0,1"), (2, "0,1")]
    assert group.part_of(3).node_rank == 1


# ---------------------------------------------------------------------------------------------------------- checksums


def reference(tensor: torch.Tensor) -> Sums:
    """In Python's own integers."""
    whole = matrix(tensor)
    bits = whole.contiguous().view({2: torch.int16, 4: torch.int32}[whole.element_size()]).tolist()
    of_row, of_column = (factors(0, n, salt, tensor.device).tolist() for salt, n in enumerate(whole.shape))
    rows = sum(value * of_row[i] for i, row in enumerate(bits) for value in row)
    columns = sum(value * of_column[j] for row in bits for j, value in enumerate(row))
    return Sums(rows % 2**64, columns % 2**64)


@given(st.integers(1, 7), st.integers(1, 5), st.sampled_from([torch.float32, torch.bfloat16]), st.integers(0, 99))
def test_sums_are_what_they_say(rows: int, columns: int, dtype: torch.dtype, seed: int) -> None:
    tensor = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)
    assert sums_of(tensor) == reference(tensor)


@given(st.integers(2, 9), st.integers(2, 9), st.data())
def test_sums_of_parts_add_up(rows: int, columns: int, data: Any) -> None:
    tensor = torch.randn(rows, columns)
    cut = data.draw(st.integers(1, rows - 1))
    assert sums_of(tensor[:cut]) + sums_of(tensor[cut:], row=cut) == sums_of(tensor)
    cut = data.draw(st.integers(1, columns - 1))
    assert sums_of(tensor[:, :cut]) + sums_of(tensor[:, cut:], column=cut) == sums_of(tensor)
    assert sums_of(tensor[0][:cut]) + sums_of(tensor[0][cut:], row=cut) == sums_of(tensor[0])


@given(st.integers(0, 7), st.integers(0, 5), st.integers(0, 31))
def test_every_bit_counts(row: int, column: int, bit: int) -> None:
    tensor = torch.randn(8, 6)
    changed = tensor.clone()
    changed.view(torch.int32)[row, column] ^= -(2**31) if bit == 31 else 1 << bit
    before, after = sums_of(tensor), sums_of(changed)
    assert before.rows != after.rows and before.columns != after.columns


def test_places_count() -> None:
    tensor = torch.arange(12.0).view(3, 4)
    for moved in (tensor[[1, 0, 2]], tensor[:, [0, 2, 1, 3]], tensor.roll(1)):
        assert sums_of(moved.contiguous()) != sums_of(tensor)
    swapped = tensor.clone()
    swapped[0, 0], swapped[2, 3] = tensor[2, 3], tensor[0, 0]
    assert sums_of(swapped) != sums_of(tensor)


# ------------------------------------------------------------------------------------------------------------ regions


class Model(nn.Module):
    """Layers that are cut as SGLang's and vLLM's are, with their attributes; `tp_rank` of `tp`."""

    def __init__(
        self, tp: int, tp_rank: int, heads: int = 4, kv_heads: int = 2, size: int = 3, vocab: int = 10
    ) -> None:
        super().__init__()
        width = heads * size
        self.tp, self.tp_rank = tp, tp_rank
        q, kv, mlp = heads // tp * size, max(1, kv_heads // tp) * size, 8 // tp
        self.embed = self._layer(torch.zeros(-(-vocab // tp), width))
        per = -(-vocab // tp)
        start = tp_rank * per
        self.embed.org_vocab_size = vocab
        self.embed.shard_indices = SimpleNamespace(
            org_vocab_start_index=start, org_vocab_end_index=min(vocab, start + per)
        )
        self.attn = nn.Module()
        self.attn.qkv_proj = self._layer(torch.zeros(q + 2 * kv, width), sizes=[q, kv, kv])
        self.attn.qkv_proj.num_kv_head_replicas = max(1, tp // kv_heads)
        self.attn.o_proj = self._layer(torch.zeros(width, width // tp), width // tp)
        self.mlp = nn.Module()
        self.mlp.gate_up_proj = self._layer(torch.zeros(2 * mlp, width), sizes=[mlp, mlp])
        self.norm = self._layer(torch.zeros(width))
        kv_whole = kv_heads * size
        self.shapes = {
            "embed.weight": (vocab, width),
            "attn.q_proj.weight": (width, width),
            "attn.k_proj.weight": (kv_whole, width),
            "attn.v_proj.weight": (kv_whole, width),
            "attn.o_proj.weight": (width, width),
            "mlp.gate_proj.weight": (8, width),
            "mlp.up_proj.weight": (8, width),
            "norm.weight": (width,),
        }

    def _layer(self, weight: torch.Tensor, columns: int | None = None, sizes: list[int] | None = None) -> Any:
        layer = nn.Module()
        layer.weight = nn.Parameter(weight)
        if columns is not None:
            layer.input_size_per_partition = columns
        if sizes is not None:
            layer.output_partition_sizes = sizes
        return layer

    def load(self, tensors: Any) -> None:
        """As an engine's own loader does, written without `region_of`."""
        for name, whole in tensors:
            short = name.removesuffix(".weight")
            if short == "embed":
                rows = whole.tensor_split([i * len(self.embed.weight) for i in range(1, self.tp)])[self.tp_rank]
                self.embed.weight[: len(rows)] = rows
            elif short == "attn.o_proj":
                self.attn.o_proj.weight.copy_(whole.chunk(self.tp, 1)[self.tp_rank])
            elif short == "norm":
                self.norm.weight.copy_(whole)
            elif short.startswith("mlp."):
                mine = whole.chunk(self.tp)[self.tp_rank]
                at = len(mine) * (short == "mlp.up_proj")
                self.mlp.gate_up_proj.weight[at : at + len(mine)] = mine
            else:
                layer = self.attn.qkv_proj
                index = ["q", "k", "v"].index(short[5])
                size, at = layer.output_partition_sizes[index], sum(layer.output_partition_sizes[:index])
                which = self.tp_rank if index == 0 else self.tp_rank * len(whole) // size // self.tp
                layer.weight[at : at + size] = whole[which * size : (which + 1) * size]


def wholes(model: Model) -> dict[str, torch.Tensor]:
    dice = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=dice) for name, shape in model.shapes.items()}


def update(model: Model, tensors: dict[str, torch.Tensor], spoil: str = "", after: str = "") -> Report:
    """One update through a bucket; `spoil`: a tensor changed on the way, `after`: one changed in the model."""
    bucket, receiver = Bucket(2**16, torch.device("cpu")), Receiver(model.tp_rank)
    try:
        items = iter(tensors.items())
        filled, rest = Filler(torch.float32).fill(bucket, items, next(items))
        assert rest is None
        slots = filled.summed()
        for slot, tensor in read(bucket.memory_N, slots):
            if slot.name == spoil:
                tensor.view(-1)[1] += 1
        handles = (bucket.handle(),) * model.tp
        receiver.take(wire.decode(wire.encode(Load(5, slots, handles, True))), model, model.load)
        with torch.no_grad():
            if after:
                region = region_of(model, after, tensors[after].shape, model.tp_rank)
                region.of_parameter(model.get_parameter(region.parameter)).view(-1)[0] += 1
        return receiver.take(Look(5), model, model.load)
    finally:
        bucket.close()


@pytest.mark.parametrize(("tp", "kv_heads"), [(1, 2), (2, 2), (4, 2), (4, 4), (4, 1)])
def test_what_stands_on_all_ranks_is_what_was_sent(tp: int, kv_heads: int) -> None:
    models = [Model(tp, rank, kv_heads=kv_heads) for rank in range(tp)]
    tensors = wholes(models[0])
    reports = [update(model, tensors) for model in models]
    assert all(report.findings == () for report in reports)
    found, findings = whole_sums(reports)
    assert findings == ()
    assert found == {name: sums_of(tensor) for name, tensor in tensors.items()}


def test_what_is_cut_by_columns_is_found_though_it_has_sizes_of_rows() -> None:
    models = [Model(2, rank) for rank in range(2)]
    for model in models:
        model.attn.o_proj.output_partition_sizes = [len(model.attn.o_proj.weight)]  # type: ignore[assignment]  # as vLLM
    assert [update(model, wholes(model)).findings for model in models] == [(), ()]


@pytest.mark.parametrize("name", ["embed.weight", "attn.v_proj.weight", "attn.o_proj.weight", "norm.weight"])
def test_a_spoiled_tensor_is_named(name: str) -> None:
    model = Model(2, 1)
    (finding,) = update(model, wholes(model), spoil=name).findings
    assert (finding.tp_rank, finding.name) == (1, name) and "arrived as" in finding.what


@pytest.mark.parametrize("name", ["embed.weight", "attn.k_proj.weight", "attn.o_proj.weight", "mlp.up_proj.weight"])
def test_a_tensor_that_stands_wrong_is_named(name: str) -> None:
    model = Model(2, 0)
    (finding,) = update(model, wholes(model), after=name).findings
    assert (finding.tp_rank, finding.name) == (0, name) and "stands as" in finding.what


def test_a_loader_that_leaves_out_a_tensor_is_found_out() -> None:
    model = Model(1, 0)
    tensors = wholes(model)
    model.load = lambda given, load=model.load: load([(n, t) for n, t in given if "o_proj" not in n])  # type: ignore
    (finding,) = update(model, tensors).findings
    assert finding.name == "attn.o_proj.weight" and "stands as" in finding.what


def test_a_parameter_without_weights_is_named() -> None:
    model = Model(1, 0)
    (finding,) = update(model, {n: t for n, t in wholes(model).items() if n != "norm.weight"}).findings
    assert (finding.name, finding.what) == ("norm.weight", "got no weights")


def test_a_tensor_without_a_known_place_is_named() -> None:
    model = Model(1, 0)
    with pytest.raises(UnknownPlace, match="no parameter for experts"):
        region_of(model, "experts.weight", (2, 2), 0)
    with pytest.raises(UnknownPlace, match=r"norm.weight \[5\] fits in no known way"):
        region_of(model, "norm.weight", (5,), 0)


def test_a_loader_that_raises_is_reported_and_nothing_is_raised() -> None:
    def broken(_tensors: Any) -> None:
        raise KeyError("no such weight")

    model = Model(1, 0)
    model.load = broken  # type: ignore[method-assign]
    report = update(model, wholes(model))
    assert any("stands as" in finding.what for finding in report.findings)


# ----------------------------------------------------------------------------------------------------------- messages


def test_messages_survive_the_way() -> None:
    load = Load(3, (Slot("a", (2, 3), "bfloat16", 256, Sums(2**64 - 1, 5)), Slot("b", (), "float32", 0, None)), ("h",))
    held = Standing(1, 0, 2, 4, "float32", Sums(7, 8))
    for message in (load, Look(2), Report(1, 3, (Finding(1, "a", "is odd"),), {"a": held})):
        assert wire.decode(wire.encode(message)) == message


def test_reports_are_read_once_and_by_rank(tmp_path: Any) -> None:
    for rank in (10, 2):
        write_report(tmp_path, Report(rank, 1))
    assert [report.tp_rank for report in reports_in(tmp_path)] == [2, 10]
    assert reports_in(tmp_path) == ()


def test_parts_that_leave_a_gap_or_differ_are_named() -> None:
    held = Standing(0, 0, 2, 4, "float32", Sums(1, 1))
    _, findings = whole_sums([Report(0, 1, (), {"a": held})])
    assert "gaps" in findings[0].what
    two = [
        Report(0, 1, (), {"a": replace(held, stop=4)}),
        Report(1, 1, (), {"a": replace(held, stop=4, sums=Sums(2, 1))}),
    ]
    _, findings = whole_sums(two)
    assert [(finding.tp_rank, finding.name) for finding in findings] == [(1, "a")]
    _, findings = whole_sums([two[0], Report(1, 1)])
    assert "is not there" in findings[0].what


# ------------------------------------------------------------------------------------------------------------ buckets


@settings(deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=12), st.integers(1024, 4096))
def test_buckets_carry_every_tensor_once(sizes: list[int], capacity: int) -> None:
    sent = {f"t{i}": torch.randn(size) for i, size in enumerate(sizes)}
    bucket, filler = Bucket(max(capacity, 2800), torch.device("cpu")), Filler(torch.float32)
    try:
        memory_N = open_handle(bucket.handle())
        items = iter(sent.items())
        following = next(items)
        arrived: dict[str, torch.Tensor] = {}
        while following is not None:
            filled, following = filler.fill(bucket, items, following)
            assert filled.slots
            for slot, tensor in read(memory_N, filled.slots):
                assert slot.offset % 256 == 0
                arrived[slot.name] = tensor.clone()
            assert [slot.sums for slot in filled.summed()] == results(list(filled.pending))
        assert list(arrived) == list(sent) and all(torch.equal(arrived[n], sent[n]) for n in sent)
    finally:
        bucket.close()


def test_tensors_travel_in_the_engines_dtype() -> None:
    bucket = Bucket(1024, torch.device("cpu"))
    try:
        filled, _ = Filler(torch.bfloat16).fill(bucket, iter(()), ("w", torch.randn(3, 5)))
        ((slot, tensor),) = read(bucket.memory_N, filled.summed())
        assert (slot.dtype, tensor.dtype) == ("bfloat16", torch.bfloat16) and sums_of(tensor) == slot.sums
    finally:
        bucket.close()


# ------------------------------------------------------------------------------------------------- memory and versions


def share_of(*rooms: tuple[int, int, int], wants: Needed = Needed(weights=14 * GIB, sequence=2 * GIB)) -> float:  # noqa: B008
    """Of SGLang's memory, with (allowed, free, total) of each rank in GiB."""
    named = {f"rank {rank}'s GPU": Room(*(GIB * each for each in room)) for rank, room in enumerate(rooms)}
    return memory.share(named, wants, "sglang", "engine 0")


def test_too_little_memory_says_how_much_is_missing() -> None:
    with pytest.raises(
        EngineError, match=r"engine 0 needs 16.0 GiB .* 8.0 GiB more than .*=0.10 of 80.0 GiB gives on rank 0's GPU"
    ) as caught:
        share_of((8, 79, 80))
    assert "at least 0.2" in caught.value.hint
    with pytest.raises(
        EngineError, match=r"may use 40.0 GiB, 2.0 GiB more than is free on rank 0's GPU: 40.0 GiB of 80.0 GiB"
    ):
        share_of((40, 40, 80))
    assert share_of((40, 50, 80)) == 0.8


def test_memory_is_looked_at_on_every_rank() -> None:
    with pytest.raises(EngineError, match=r"more than is free on rank 1's GPU: 10.0 GiB of 80.0 GiB"):
        share_of((40, 79, 80), (40, 10, 80))
    assert share_of((40, 80, 80), (40, 50, 80)) == 0.8, "SGLang takes it of the least that is free"
    assert memory.share({}, Needed(1, 1), "sglang", "engine 0") == 0.3


def test_the_owner_of_a_part_looks_at_the_ranks_of_all_parts() -> None:
    engine = object.__new__(RemoteEngine)
    engine.spec, (_, engine.group) = spec_of("unused"), form_groups(places(1, 4), 2)
    engine.limits = Limits(1.0, 1.0, 1, 40 * GIB, Needed(GIB, GIB))
    full, empty = Room(40 * GIB, 10 * GIB, 80 * GIB), Room(40 * GIB, 80 * GIB, 80 * GIB)
    assert engine._share([full, full, empty, empty]) == 0.5
    with pytest.raises(EngineError, match=r"engine 1 .* more than is free on rank 3's GPU \(10.0.0.3\)"):
        engine._share([empty, empty, empty, full])


def test_no_share_is_advised_that_a_gpu_has_not() -> None:
    with pytest.raises(EngineError, match=r"60.0 GiB more than .*=0.30 of 80.0 GiB") as caught:
        share_of((24, 80, 80), wants=Needed(weights=80 * GIB, sequence=4 * GIB))
    assert "no share" in caught.value.hint and "raise tensor_model_parallel_size" in caught.value.hint


def test_needed_memory_follows_the_model() -> None:
    llama = SimpleNamespace(num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4, hidden_size=64)
    found = memory.needed(1000, llama, tokens=10, itemsize=2, tensor_parallel=2)
    assert found == Needed(1000, 2 * 2 * 2 * 8 * 2 * 10)
    gpt2 = SimpleNamespace(n_layer=1, n_head=2, n_embd=8)
    assert memory.needed(10, gpt2, tokens=1, itemsize=4, tensor_parallel=1) == Needed(40, 2 * 2 * 4 * 4)


@pytest.mark.parametrize(
    ("hip", "given", "gpu", "variable"),
    [
        (None, {"CUDA_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "0,1"}, "6", "CUDA_VISIBLE_DEVICES"),
        (None, {}, "1", "CUDA_VISIBLE_DEVICES"),
        ("6.2", {"HIP_VISIBLE_DEVICES": "4,6"}, "6", "HIP_VISIBLE_DEVICES"),
        ("6.2", {"HIP_VISIBLE_DEVICES": "1,2", "ROCR_VISIBLE_DEVICES": "4,5,6"}, "2", "HIP_VISIBLE_DEVICES"),
        ("6.2", {"ROCR_VISIBLE_DEVICES": "4,6"}, "6", "ROCR_VISIBLE_DEVICES"),
        ("6.2", {"CUDA_VISIBLE_DEVICES": "4,6"}, "6", "CUDA_VISIBLE_DEVICES"),
        ("6.2", {}, "1", "HIP_VISIBLE_DEVICES"),
    ],
)
def test_a_ranks_gpu_by_the_variable_that_ray_sets(
    hip: str | None, given: dict[str, str], gpu: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in remote.ON_ROCM:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    context = SimpleNamespace(get_node_id=lambda: "n0")
    util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context, util=util)
    monkeypatch.setattr(remote, "ray", ray)
    assert remote.place_of(3, torch.device("cuda")) == Place(3, "n0", "10.0.0.1", gpu)
    assert remote.gpu_variable() == variable


def test_an_engine_sees_its_ranks_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    part = PartSpec(0, 0, 1, "4,6", "127.0.0.1:5000")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    show_gpus(part)
    assert [os.environ[name] for name in remote.ON_ROCM[:2]] == ["0", "4,6"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    show_gpus(replace(part, gpu_variable="HIP_VISIBLE_DEVICES"))
    assert [os.environ[name] for name in remote.ON_ROCM[:2]] == ["4,6", "4,6"]


def test_an_engine_that_does_not_fit_is_one_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    part = PartSpec(0, 1, 2, "", "10.0.0.1:5000", node="10.0.0.2")
    monkeypatch.setattr(versions, "installed", {"sglang": "0.5.15", "vllm": None}.get)
    with pytest.raises(ConfigError, match=r"sglang 0.5.15 is installed on node 10.0.0.2, and this trainer works with"):
        sglang.start(spec_of("unused"), part)
    with pytest.raises(ConfigError, match=r"vllm is not installed on node 10.0.0.2$"):
        vllm.start(spec_of("unused"), part)


def test_of_what_the_parts_of_an_engine_say_the_cause_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a part that ends because it does not fit, the others' word on its end is no news."""
    engine = object.__new__(RemoteEngine)
    said = [
        PartLost("part 2 of 2 died", hint="look"),
        None,
        ConfigError("sglang 0.5.15 is installed on node 10.0.0.2", hint="look"),
    ]
    monkeypatch.setattr(engine, "_gathered", lambda _mine: said)
    with pytest.raises(ConfigError, match=r"on node 10.0.0.2"):
        engine._each(False, lambda: None)
    said.pop()
    with pytest.raises(PartLost):
        engine._each(False, lambda: None)


def test_the_part_that_failed_raises_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the frames that it came through; the others raise a copy that was sent to them."""
    engine = object.__new__(RemoteEngine)
    monkeypatch.setattr(engine, "_gathered", lambda mine: pickle.loads(pickle.dumps([None, mine])))

    def act() -> None:
        raise EngineError("it does not fit", hint="look")

    with pytest.raises(EngineError, match="it does not fit") as caught:
        engine._each(True, act)
    assert "act" in [entry.name for entry in caught.traceback]


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (None, "sglang is not installed on this machine: install it"),
        (
            "0.5.15.post1",
            "sglang 0.5.15.post1 is installed on this machine, and this trainer works with 0.5.17 and later",
        ),
        ("0.5.23", ""),
    ],
)
def test_check_notes_an_engine_that_is_missing_or_too_old(
    version: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(setting_notes.__globals__, "installed", lambda _name: version)
    config = load(["actor_rollout_ref.rollout.name=sglang", "data.train_files=[unused]"]).config
    notes = [note.message for note in setting_notes(config) if note.key == "actor_rollout_ref.rollout.name"]
    assert [note.startswith(says) for note in notes] == ([True] if says else [])


def test_engines_that_are_missing_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda _name: None)
    with pytest.raises(ConfigError, match="sglang is not installed here") as caught:
        versions.require_version("sglang")
    assert "pip install 'sglang>=0.5.17'" in caught.value.hint and "hf" in caught.value.hint
    monkeypatch.setattr(versions, "installed", lambda _name: "0.5.15.post1")
    with pytest.raises(ConfigError, match=r"sglang 0.5.15.post1 is installed .* works with 0.5.17"):
        versions.require_version("sglang")
    monkeypatch.setattr(versions, "installed", lambda _name: "0.5.17")
    assert versions.require_version("sglang") == "0.5.17"
    monkeypatch.setattr(versions, "installed", lambda _name: "0.19.1")
    with pytest.raises(ConfigError, match=r"vllm 0.19.1 is installed .* works with 0.20"):
        versions.require_version("vllm")
