"""Decoders as the papers write them: no cache, no pages, no absorption, one token after another. Slow and plain.

They read the same named weights and share nothing else with `hicache_ref.model`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hicache_ref.model.spec import ModelSpec
from hicache_ref.model.weights import Source


def logits(spec: ModelSpec, source: Source, tokens: list[int]) -> Tensor:
    """[tokens, vocab] in float64."""
    shape = spec.shape

    def get(name: str, *dims: int) -> Tensor:
        return source.get(name, dims).double()

    x = get("model.embed_tokens.weight", shape.vocab, shape.hidden)[tokens]
    ffns = [ffn for count, ffn in shape.blocks for _ in range(count)]
    for number, ffn in enumerate(ffns):
        name = f"model.layers.{number}"
        normed = norm(x, get(f"{name}.input_layernorm.weight", shape.hidden), spec.eps)
        x = x + ATTENTION[shape.attention.name](spec, get, f"{name}.self_attn", normed)
        normed = norm(x, get(f"{name}.post_attention_layernorm.weight", shape.hidden), spec.eps)
        x = x + torch.stack([feed(spec, ffn, get, f"{name}.mlp", token) for token in normed])
    x = norm(x, get("model.norm.weight", shape.hidden), spec.eps)
    return x @ get("lm_head.weight", shape.vocab, shape.hidden).T


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(x: Tensor, position: int, theta: float, neighbours: bool) -> Tensor:
    """[.., D] as D / 2 complex numbers, each turned by its angle."""
    half = x.shape[-1] // 2
    angle = position * torch.tensor([theta ** (-i / half) for i in range(half)], dtype=torch.float64)
    turn = torch.polar(torch.ones_like(angle), angle)
    if neighbours:
        pairs = torch.view_as_complex(x.unflatten(-1, (half, 2)).contiguous()) * turn
        return torch.view_as_real(pairs).flatten(-2)
    pairs = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([pairs.real, pairs.imag], -1)


def heads_attention(spec: ModelSpec, get, name: str, x: Tensor) -> Tensor:
    a, hidden = spec.shape.attention, spec.shape.hidden
    turning = int(a.head_dim * spec.positions.share)

    def made(part: str, heads: int) -> Tensor:
        y = x @ get(f"{name}.{part}_proj.weight", heads * a.head_dim, hidden).T
        if a.qkv_bias:
            y = y + get(f"{name}.{part}_proj.bias", heads * a.head_dim)
        y = y.unflatten(-1, (heads, a.head_dim))
        if a.qk_norm and part != "v":
            y = norm(y, get(f"{name}.{part}_norm.weight", a.head_dim), spec.eps)
        if part == "v":
            return y
        rest = y[..., turning:]
        theta, neighbours = spec.positions.theta, spec.positions.interleaved
        return torch.cat(
            [torch.stack([turned(each[..., :turning], at, theta, neighbours) for at, each in enumerate(y)]), rest], -1
        )

    q, k, v = made("q", a.heads), made("k", a.group_heads), made("v", a.group_heads)
    share = a.heads // a.group_heads
    out = torch.stack(
        [causal(q[:, h], k[:, h // share], v[:, h // share], a.head_dim**-0.5) for h in range(a.heads)], 1
    ).flatten(1)
    y = out @ get(f"{name}.o_proj.weight", hidden, a.heads * a.head_dim).T
    return y + get(f"{name}.o_proj.bias", hidden) if spec.output_bias else y


def latent_attention(spec: ModelSpec, get, name: str, x: Tensor) -> Tensor:
    """Keys and values unpacked for every head, as the model was trained."""
    a, hidden = spec.shape.attention, spec.shape.hidden
    plain, turning = a.qk_nope_head_dim, a.qk_rope_head_dim
    q = x
    if a.q_lora_rank is None:
        q = q @ get(f"{name}.q_proj.weight", a.heads * (plain + turning), hidden).T
    else:
        q = q @ get(f"{name}.q_a_proj.weight", a.q_lora_rank, hidden).T
        q = norm(q, get(f"{name}.q_a_layernorm.weight", a.q_lora_rank), spec.eps)
        q = q @ get(f"{name}.q_b_proj.weight", a.heads * (plain + turning), a.q_lora_rank).T
    q = q.unflatten(-1, (a.heads, -1))
    down = x @ get(f"{name}.kv_a_proj_with_mqa.weight", a.kv_lora_rank + turning, hidden).T
    latent = norm(down[:, : a.kv_lora_rank], get(f"{name}.kv_a_layernorm.weight", a.kv_lora_rank), spec.eps)
    up = get(f"{name}.kv_b_proj.weight", a.heads * (plain + a.v_head_dim), a.kv_lora_rank)
    kv = (latent @ up.T).unflatten(-1, (a.heads, -1))
    shared = torch.stack([turned(r, at, spec.positions.theta, True) for at, r in enumerate(down[:, a.kv_lora_rank :])])
    outs = []
    for h in range(a.heads):
        mine = torch.stack([turned(r, at, spec.positions.theta, True) for at, r in enumerate(q[:, h, plain:])])
        query, key = torch.cat([q[:, h, :plain], mine], -1), torch.cat([kv[:, h, :plain], shared], -1)
        outs.append(causal(query, key, kv[:, h, plain:], (plain + turning) ** -0.5))
    return torch.cat(outs, -1) @ get(f"{name}.o_proj.weight", hidden, a.heads * a.v_head_dim).T


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    rows = []
    for at, query in enumerate(q):
        weights = torch.softmax(k[: at + 1] @ query * scale, 0)
        rows.append(weights @ v[: at + 1])
    return torch.stack(rows)


ATTENTION = {"mha": heads_attention, "mla": latent_attention, "nsa": latent_attention}


def feed(spec: ModelSpec, ffn, get, name: str, x: Tensor) -> Tensor:
    """One token [hidden]."""
    hidden = len(x)

    def mlp(part: str, width: int) -> Tensor:
        gate, up = (get(f"{part}.{half}_proj.weight", width, hidden) @ x for half in ("gate", "up"))
        return get(f"{part}.down_proj.weight", hidden, width) @ (gate / (1 + torch.exp(-gate)) * up)

    if not hasattr(ffn, "experts"):
        return mlp(name, ffn.intermediate)
    raw = get(f"{name}.gate.weight", ffn.experts, hidden) @ x
    sigmoid = spec.routing.score == "sigmoid"
    score = [1 / (1 + math.exp(-s)) if sigmoid else math.exp(s) / raw.exp().sum().item() for s in raw.tolist()]
    bias = get(f"{name}.gate.e_score_correction_bias", ffn.experts).tolist() if ffn.router_bias else [0.0] * len(score)
    order = sorted(range(ffn.experts), key=lambda e: -(score[e] + bias[e]))
    chosen = [e for e in order if e in _allowed(spec, score, bias)][: ffn.topk]
    whole = sum(score[e] for e in chosen) if spec.routing.normalise else 1.0
    out = sum(score[e] / whole * spec.routing.scale * mlp(f"{name}.experts.{e}", ffn.intermediate) for e in chosen)
    return out + mlp(f"{name}.shared_experts", ffn.shared_intermediate) if ffn.shared_intermediate else out


def _allowed(spec: ModelSpec, score: list[float], bias: list[float]) -> set[int]:
    """Experts of the best groups."""
    r, size = spec.routing, len(score) // spec.routing.groups
    ranks = [s + b for s, b in zip(score, bias, strict=True)]
    groups = [ranks[g * size : (g + 1) * size] for g in range(r.groups)]
    worth = [sum(sorted(group, reverse=True)[: r.group_best]) for group in groups]
    best = sorted(range(r.groups), key=lambda g: -worth[g])[: r.top_groups]
    return {e for g in best for e in range(g * size, (g + 1) * size)}
