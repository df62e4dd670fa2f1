"""kv.from_torch: modules of PyTorch through torch-mlir."""

from __future__ import annotations

import gc

import graphs
import numpy as np
import pytest

import kvcache as kv

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
pytest.importorskip("torch_mlir", reason="torch-mlir is not installed: pip install torch-mlir packaging")
nn, F = torch.nn, torch.nn.functional
BOUND = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def rand(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape and isinstance(got, torch.Tensor)
    name = str(want.dtype).removeprefix("torch.")
    assert graphs.deviation(got.double().numpy(), want.double().numpy(), name) <= BOUND.get(name, 0)


@torch.no_grad()
def check(module, *args, fused=1, **kwargs):
    ours = kv.from_torch(module.eval(), args, kwargs)
    assert len(ours.specs) == fused, ours.report
    got, want = ours(*args, **kwargs), module(*args, **kwargs)
    pytree = torch.utils._pytree
    leaves, spec = pytree.tree_flatten(got)
    wanted, wanted_spec = pytree.tree_flatten(want)
    assert spec == wanted_spec
    for a, b in zip(leaves, wanted, strict=True):
        close(a, b)
    return ours


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_causal(dtype):
    q, k, v = (rand(2, 3, 12, 16, dtype=dtype, seed=s) for s in range(3))
    assert check(Attention(is_causal=True), q, k, v).specs[0].causal


def test_groups_and_mask():
    q, k, v = rand(1, 8, 10, 16), rand(1, 2, 10, 16, seed=1), rand(1, 2, 10, 16, seed=2)
    check(Attention(enable_gqa=True), q, k, v)
    lengths = torch.arange(10) < 7
    check(Attention(), *(rand(1, 2, 10, 16, seed=s) for s in range(3)), mask=lengths[None, None, None])


class Block(nn.Module):
    """A layer whose keys and values are kept in buffers."""

    def __init__(self, c=32, heads=4, length=9):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.norm = nn.LayerNorm(c)
        self.up, self.down = nn.Linear(c, 2 * c), nn.Linear(2 * c, c)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, heads, length, c // heads))

    def forward(self, x, at):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        seen = torch.arange(self.keys.shape[2]) <= at[:, None]
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, at):
        for layer in self.layers:
            x = layer(x, at)
        return {"x": x, "last": x[:, -1]}


@torch.no_grad()
def test_layers_with_cache_in_buffers():
    torch.manual_seed(0)
    ours, theirs = Model().eval(), Model().eval()
    theirs.load_state_dict(ours.state_dict())
    run = kv.from_torch(ours, (rand(1, 1, 32), torch.tensor([0])))
    assert len(run.specs) == 2, run.report
    for step in range(4):
        x, at = rand(1, 1, 32, seed=step), torch.tensor([step])
        got, want = run(x, at), theirs(x, at)
        assert got.keys() == want.keys()
        for name in want:
            close(got[name], want[name])
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        close(a, b)


@torch.no_grad()
def test_parameters_are_read_on_each_call():
    module = nn.Linear(4, 3).eval()
    run = kv.from_torch(module, (rand(2, 4),))
    x = rand(2, 4, seed=5)
    first = run(x)
    module.weight.mul_(2)
    close(run(x), module(x))
    assert not torch.equal(run(x), first)


class NotSoftmax(nn.Module):
    def forward(self, q, k, v):
        p = torch.softmax(q @ k.mT, -1)
        return p @ v, p


def test_near_miss_stays():
    run = check(NotSoftmax(), *(rand(1, 2, 6, 8, seed=s) for s in range(3)), fused=0)
    assert run.report[0]["reason"]


@torch.no_grad()
def test_results_own_their_memory_and_inputs_stay():
    module = Attention()
    args = [rand(1, 2, 6, 8, seed=s) for s in range(3)]
    run = kv.from_torch(module.eval(), args)
    kept, copies = run(*args), [a.clone() for a in args]
    want = kept.clone()
    for seed in range(3):
        run(*[rand(1, 2, 6, 8, seed=seed + 9) for _ in range(3)])
    gc.collect()
    assert torch.equal(kept, want)
    assert all(torch.equal(a, b) for a, b in zip(args, copies, strict=True))
    strided = [a.transpose(1, 2).contiguous().transpose(1, 2) for a in args]
    close(run(*strided), want)


def test_refused():
    module, args = Attention(), [rand(1, 2, 6, 8)] * 3
    with pytest.raises(ValueError, match="training mode; call its eval"):
        kv.from_torch(module.train(), args)
    with pytest.raises(ValueError, match="expected a torch.nn.Module"):
        kv.from_torch(F.relu, args)
    with pytest.raises(ValueError, match="args is a Tensor, expected a tuple"):
        kv.from_torch(module.eval(), args[0])
    run = kv.from_torch(module.eval(), args)
    with pytest.raises(
        ValueError, match=r"argument 0 is float32 \[1, 2, 7, 8\], expected float32 \[1, 2, 6, 8\]"
    ):
        run(*[rand(1, 2, 7, 8)] * 3)
    with pytest.raises(ValueError, match="argument 0 is float16"):
        run(*[a.half() for a in args])
    with pytest.raises(ValueError, match="another structure"):
        run(*args[:2])
    with pytest.raises(ValueError, match="computes no gradients"):
        run(args[0].requires_grad_(), *args[1:])


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_what_cannot_be_exported_is_named():
    with pytest.raises(ValueError, match="torch.export cannot export Branching"):
        kv.from_torch(Branching().eval(), (rand(3),))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_paged_cache_takes_and_gives_tensors(dtype):
    spec = kv.AttentionSpec(q_heads=4, kv_heads=2, head_dim=16, dtype=dtype)
    t = getattr(torch, dtype)
    k, v, q = rand(20, 2, 16, dtype=t), rand(20, 2, 16, dtype=t, seed=1), rand(3, 4, 16, dtype=t, seed=2)
    cache = kv.PagedCache(spec, capacity_tokens=64)
    seq = cache.new_sequence()
    cache.append(seq, k, v)
    out, lse = cache.attend(q, [seq], [3])
    assert out.dtype == t and lse.dtype == torch.float32
    mask = torch.arange(20) <= torch.arange(17, 20)[:, None]
    want = F.scaled_dot_product_attention(
        *(x.double().transpose(0, 1) for x in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))),
        attn_mask=mask,
    ).transpose(0, 1)
    assert np.abs((out.double() - want).numpy()).max() <= BOUND[dtype] * np.abs(want.numpy()).max()
    cache.append(seq, k.requires_grad_(), v)  # parameters are read as they are
    assert cache.length(seq) == 40
