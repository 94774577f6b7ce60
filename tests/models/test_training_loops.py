"""Trainers of other packages, on data made on the spot: each with one line for Lampwork, and eager's losses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lampwork

STEPS = 15  # three epochs of five batches


def assert_compiled(steps: int, eager: int, segments: int = 1) -> None:
    """So many steps ran, each with backwards of so many segments, of which at most `eager` were not compiled: the first
    of each version and size."""
    stats = lampwork.stats()
    assert stats["trained"] >= 1 and stats["eager_calls"] == stats["breaks"] == 0, stats
    passing = segments * stats["passing_calls"]  # sizes that came for the first time
    assert stats["compiled_backwards"] + stats["eager_backwards"] + passing == segments * steps, stats
    assert stats["eager_backwards"] + passing <= eager, stats


def assert_same_losses(found: list[float], want: list[float], tolerance: float = 1e-5) -> None:
    assert len(found) == len(want)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(want), rtol=tolerance, atol=1e-6)


# --- transformers -----------------------------------------------------------------------------------------------------


def classifier():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        num_labels=3,
        problem_type="single_label_classification",  # else the first call sets it
    )
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def sentences():
    """38 of them, so that the last batch of eight has six."""
    generator = torch.Generator().manual_seed(3)
    return [
        {
            "input_ids": torch.randint(0, 99, (12,), generator=generator),
            "labels": i % 3,
        }
        for i in range(38)
    ]


def trainer(folder, model, **options):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    data = sentences()
    arguments = transformers.TrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 8,
            "num_train_epochs": 3,
            "learning_rate": 1e-3,
            "adam_epsilon": 1e-5,
            "logging_steps": 1,
            "eval_strategy": "epoch",
            "save_strategy": "no",
            "seed": 1,
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            **options,
        }
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])


def losses_of(trainer) -> list[float]:
    return [x[name] for x in trainer.state.log_history for name in ("loss", "eval_loss") if name in x]


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"gradient_accumulation_steps": 2}])
def test_transformers_trainer(tmp_path, options):
    plain = trainer(tmp_path / "eager", classifier(), **options)
    plain.train()
    model = classifier()
    model.forward = lampwork.compile(model.forward)
    ours = trainer(tmp_path / "ours", model, **options)
    lampwork.reset_stats()
    ours.train()
    assert_same_losses(losses_of(ours), losses_of(plain), 1e-2 if "bf16" in options else 1e-5)
    assert_compiled(STEPS, eager=6, segments=2)  # of the loss and of the scores


def test_transformers_trainer_resumes(tmp_path):
    plain = trainer(tmp_path / "eager", classifier())
    plain.train()
    first = classifier()
    first.forward = lampwork.compile(first.forward)
    trainer(tmp_path / "ours", first, save_strategy="epoch").train()
    model = classifier()
    model.forward = lampwork.compile(model.forward)
    ours = trainer(tmp_path / "ours", model)
    lampwork.reset_stats()
    ours.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-10"))
    assert ours.state.global_step == STEPS
    assert_same_losses(losses_of(ours), losses_of(plain))
    assert_compiled(STEPS - 10, eager=4, segments=2)


def test_transformers_trainer_with_torchs_capture(tmp_path):
    plain = trainer(tmp_path / "eager", classifier())
    plain.train()
    model = classifier()
    model.compile(backend="lampwork")
    ours = trainer(tmp_path / "ours", model)
    lampwork.reset_stats()
    ours.train()
    assert_same_losses(losses_of(ours), losses_of(plain))
    assert_compiled(STEPS, eager=8, segments=2)


# --- lightning --------------------------------------------------------------------------------------------------------


def examples():
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(38, 16, generator=generator), torch.randint(0, 3, (38,), generator=generator)
    )


def network():
    return nn.Sequential(
        nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 3)
    )


def fit(compiled: str, **options) -> list[float]:
    """The losses of Lightning's loop, of training and validation."""
    lightning = pytest.importorskip("lightning")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, batch_idx):
            x, labels = batch
            return F.cross_entropy(self.net(x), labels)

        def validation_step(self, batch, batch_idx):
            return self.training_step(batch, batch_idx)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3, eps=1e-5)

    class Watch(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            losses.append(outputs["loss"].item())

        def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
            losses.append(outputs.item())

    losses: list[float] = []
    torch.manual_seed(0)
    model = Net()
    if compiled == "net":
        model.net = lampwork.compile(model.net)
    elif compiled == "training_step":
        model.training_step = lampwork.compile(model.training_step)
    elif compiled == "torch.compile":
        model = torch.compile(model, backend="lampwork")
    loop = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        callbacks=[Watch()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )
    loader = DataLoader(examples(), 8)
    loop.fit(model, loader, loader)
    return losses


@pytest.mark.parametrize("compiled", ["net", "training_step", "torch.compile"])
@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}])
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_lightning_trainer(compiled, options):
    want = fit("", **options)
    lampwork.reset_stats()
    assert_same_losses(fit(compiled, **options), want)
    assert_compiled(STEPS, eager=4)


# --- a loop of one's own ----------------------------------------------------------------------------------------------


def test_plain_loop():
    def run(compile):
        torch.manual_seed(0)
        net = network()
        model = compile(net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-5)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)
        losses = []
        for _ in range(3):
            for x, labels in DataLoader(examples(), 8):
                loss = F.cross_entropy(model(x), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
        return losses

    want = run(lambda net: net)
    lampwork.reset_stats()
    assert_same_losses(run(lampwork.compile), want)
    assert_compiled(STEPS, eager=4)
