"""Networks trained for dozens of steps: losses, parameters and random numbers as eager's, with backward compiled."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lampwork
from lampwork.bench.networks import MobileNetV3, ResNet
from lampwork.bench.training.networks import Classified, Compared, Maker, images, text, vit
from lampwork.runtime import autograd

STEPS = 30
TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)


def small_images(make, size: int, batch: int = 4) -> Maker:
    """As `images`, of ten classes."""

    def build():
        loss, (x, labels) = images(lambda: make(classes=10), batch, size)()
        return loss, (x, labels % 10)

    return build


def lstm():
    net = nn.Sequential(nn.LSTM(8, 16, num_layers=2, batch_first=True, dropout=0.2))
    return Compared(First(net)).train(), (torch.randn(2, 5, 8), torch.randn(2, 5, 16))


class First(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)[0]


def mlp():
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(32), nn.Linear(32, 10))
    return Classified(net).train(), (torch.randn(8, 16), torch.randint(0, 10, (8,)))


NETWORKS: dict[str, Maker] = {
    "bert": text("BertForMaskedLM", "BertConfig", 99, 4, 12, **TINY),
    "gpt2": text("GPT2LMHeadModel", "GPT2Config", 99, 2, 16, n_embd=32, n_layer=2, n_head=4, use_cache=False),
    "llama": text(
        "LlamaForCausalLM",
        "LlamaConfig",
        99,
        2,
        16,
        **TINY,
        num_key_value_heads=2,
        attention_dropout=0.1,
        use_cache=False,
    ),
    "vit": vit(2, 32, patch_size=8, hidden_dropout_prob=0.1, **TINY),
    "resnet": small_images(lambda classes: ResNet((1, 1, 1, 1), classes=classes), 64),
    "mobilenet_v3": small_images(MobileNetV3, 64),
    "mlp": mlp,
    "lstm": lstm,
}


@pytest.fixture(params=["after a step", "ahead"])
def when(request, monkeypatch):
    """When backward is compiled."""
    if request.param == "ahead":
        monkeypatch.setattr(autograd, "AHEAD", True)
    lampwork.reset_stats()
    return request.param


def other(x: Tensor, step: int) -> Tensor:
    """Data of another step."""
    return x.roll(step, -1) if x.dtype is torch.int64 and x.dim() > 1 else x.roll(step, 0)


def adamw(model, **options):
    """Its epsilon keeps gradients that are only noise small."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-5, **options)


def plain(loss, model, inputs):
    """The losses of a loop of steps."""
    optimizer = adamw(model, fused=True)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        value = loss(*(other(x, step) for x in inputs))
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    return losses


def state(model: nn.Module) -> Tensor:
    """All parameters and statistics, in one."""
    tensors = [x for x in model.state_dict().values() if x.is_floating_point()]
    return torch.cat([x.double().reshape(-1) for x in tensors])


def assert_near(ours: Tensor, eager: Tensor, exact: Tensor, what: str) -> None:
    """Within the noise of float32: root mean square distances from float64."""
    error, noise = ((x - exact).square().mean().sqrt().item() for x in (ours, eager))
    scale = exact.square().mean().sqrt().item()
    assert error <= 3 * noise + 1e-6 * scale, f"{what}: {error:.2e}, eager's {noise:.2e}, of {scale:.2e}"


def assert_same_training(loop, make: Maker = mlp, options=None) -> nn.Module:
    """`loop(loss, model, inputs)` gives losses, and leaves parameters and the generator, as in eager. The model."""
    torch.manual_seed(0)
    model, inputs = make()
    models = {"ours": model, "eager": copy.deepcopy(model), "exact": copy.deepcopy(model).double()}
    wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    losses, states, generators = {}, {}, {}
    for name, each in models.items():
        torch.manual_seed(1)
        loss = lampwork.compile(each, **(options or {})) if name == "ours" else each
        values = loop(loss, each, wide if name == "exact" else inputs)
        losses[name] = torch.stack([x.double() for x in values])
        states[name], generators[name] = state(each), torch.get_rng_state()
    assert torch.equal(generators["ours"], generators["eager"])
    assert_near(**losses, what="losses")
    assert_near(**states, what="parameters")
    return model


def assert_compiled(backwards: int = STEPS, eager: int | None = None) -> None:
    """So many backwards ran, of which `eager` were not compiled: by default the first of each region."""
    stats = lampwork.stats()
    eager = int(stats["regions"]) if eager is None else eager
    assert stats["eager_calls"] == stats["breaks"] == 0, stats
    assert stats["eager_backwards"] <= eager, stats
    assert stats["compiled_backwards"] >= backwards - eager, stats
    assert stats["trained"] >= 1, stats


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_learns_what_it_learns_in_eager(name, when):
    assert_same_training(plain, NETWORKS[name])
    assert_compiled()


def test_dropout_masks_are_eagers_bit_for_bit(when):
    def zeros(x, weight):
        h = F.dropout(torch.relu(x @ weight) + 1, 0.3)
        return (F.dropout(h, 0.5) * h).sum(), h

    compiled = lampwork.compile(zeros)
    x = torch.randn(16, 32)
    weights = [torch.randn(32, 64, requires_grad=True) for _ in range(2)]
    twin = weights[0].detach().clone().requires_grad_()
    for step in range(STEPS):
        found = []
        for fn, weight in ((compiled, weights[0]), (zeros, twin)):
            torch.manual_seed(step)
            weight.grad = None
            loss, h = fn(x, weight)
            loss.backward()
            found.append((h == 0, weight.grad == 0, torch.get_rng_state()))
        assert all(map(torch.equal, *found))
    assert_compiled(2 * STEPS, eager=2)  # what is returned has a backward of its own


# --- loops ------------------------------------------------------------------------------------------------------------


def test_gradients_are_accumulated(when):
    def loop(loss, model, inputs):
        optimizer = adamw(model)
        losses = []
        for step in range(STEPS):
            value = loss(*(other(x, step) for x in inputs)) / 3
            value.backward()
            losses.append(value.detach())
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 0)
        return losses

    assert_same_training(loop)
    assert_compiled()


def test_training_resumes_from_a_checkpoint(when):
    """In a copy of the model, compiled again, and in place."""

    def loop(loss, model, inputs, again):
        optimizer = adamw(model, fused=True)
        losses = []
        for step in range(STEPS):
            if step == STEPS // 2:
                file = io.BytesIO()
                generator = torch.get_rng_state()
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
                nn.init.zeros_(next(model.parameters()))
                file.seek(0)
                saved = torch.load(file)
                if again:
                    fresh = copy.deepcopy(model)
                    loss = lampwork.compile(fresh) if loss is not model else fresh
                    models.append((model, fresh))
                    model = fresh
                optimizer = adamw(model, fused=True)
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                torch.set_rng_state(generator)
            optimizer.zero_grad()
            value = loss(*(other(x, step) for x in inputs))
            value.backward()
            optimizer.step()
            losses.append(value.detach())
        for old, fresh in models:
            old.load_state_dict(fresh.state_dict())
        models.clear()
        return losses

    models: list[tuple[nn.Module, nn.Module]] = []
    for again in (False, True):
        lampwork.reset_stats()
        assert_same_training(lambda *args: loop(*args, again))
        assert_compiled()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(when, dtype):
    """Autocast, with gradients scaled; a step whose gradients overflow is left out."""

    def loop(loss, model, inputs):
        narrow = next(model.parameters()).dtype is torch.float32
        optimizer = adamw(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7, enabled=narrow)
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype, enabled=narrow):
                value = loss(*(other(x, step) for x in inputs))
            scaler.scale(value).backward()
            if step == 11:
                if narrow:
                    next(model.parameters()).grad[0] = torch.inf
                else:
                    optimizer.zero_grad()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(value.detach())
        return losses

    assert_same_training(loop)
    assert_compiled()


def test_gradients_are_clipped(when):
    def loop(loss, model, inputs):
        optimizer = adamw(model)
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            value = loss(*(other(x, step) for x in inputs))
            value.backward()
            losses += [nn.utils.clip_grad_norm_(model.parameters(), 0.1), value.detach()]
            optimizer.step()
        return losses

    assert_same_training(loop)
    assert_compiled()


def test_layers_are_frozen_and_thawed(when):
    def loop(loss, model, inputs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        losses = []
        for step in range(STEPS):
            frozen = 10 <= step < 20
            for parameter in model.net[0].parameters():
                parameter.requires_grad_(not frozen)
            optimizer.zero_grad()
            before = model.net[0].weight.detach().clone()
            value = loss(*(other(x, step) for x in inputs))
            value.backward()
            optimizer.step()
            assert torch.equal(before, model.net[0].weight) == frozen
            losses.append(value.detach())
        return losses

    assert_same_training(loop)
    assert_compiled()


def test_evaluation_and_averages_between_epochs(when):
    """Evaluation sees the weights of the moment; the average is evaluated by what is compiled for it."""

    def loop(loss, model, inputs):
        optimizer = adamw(model)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
        )
        smooth = average.module if loss is model else lampwork.compile(average.module)
        losses = []
        for epoch in range(5):
            model.train()
            for step in range(STEPS // 5):
                optimizer.zero_grad()
                value = loss(*(other(x, step) for x in inputs))
                value.backward()
                optimizer.step()
                average.update_parameters(model)
                losses.append(value.detach())
            model.eval()
            average.eval()
            with torch.no_grad():
                losses += [loss(*inputs), smooth(*inputs)]
            with torch.inference_mode():
                losses.append(loss(*inputs).clone())
        return [x.clone() for x in losses]

    assert_same_training(loop)
    stats = lampwork.stats()
    assert stats["trained"] >= 1 and stats["eager_backwards"] <= 1, stats
    assert stats["compiled_backwards"] >= STEPS - 1, stats


def test_the_last_batch_of_an_epoch_is_smaller(when):
    def loop(loss, model, inputs):
        optimizer = adamw(model)
        losses = []
        for step in range(STEPS):
            size = 3 if step % 10 == 9 else 8
            optimizer.zero_grad()
            value = loss(*(other(x, step)[:size] for x in inputs))
            value.backward()
            optimizer.step()
            losses.append(value.detach())
        return losses

    assert_same_training(loop)
    stats = lampwork.stats()
    assert stats["compiled_backwards"] >= 27 - 1, stats


def test_sizes_that_change_with_every_batch(when):
    def loop(loss, model, inputs):
        optimizer = adamw(model)
        losses = []
        for step in range(STEPS):
            size = 2 + step % 7
            optimizer.zero_grad()
            value = loss(*(other(x, step)[:size] for x in inputs))
            value.backward()
            optimizer.step()
            losses.append(value.detach())
        return losses

    assert_same_training(loop)
    assert lampwork.stats()["eager_calls"] == 0
