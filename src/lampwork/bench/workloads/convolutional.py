"""Networks of convolutions."""

from __future__ import annotations

import torch
from torch import nn

from lampwork.bench.networks import (
    AlexNet,
    BasicBlock,
    ConvNeXt,
    DenseNet,
    EfficientNet,
    MobileNetV2,
    MobileNetV3,
    RegNetY,
    ResNet,
    UNet,
    WaveEncoder,
)
from lampwork.bench.workloads.workload import Maker, image, keep_alive


def _of(make: type[nn.Module], batch: int = 1) -> Maker:
    return lambda: (keep_alive(make()), image(batch))


CONVOLUTIONAL: dict[str, Maker] = {
    "alexnet": _of(AlexNet),
    "alexnet_32": _of(AlexNet, 32),
    "resnet18": lambda: (keep_alive(ResNet((2, 2, 2, 2), block=BasicBlock)), image()),
    "resnet50": _of(ResNet),
    "resnext50": lambda: (keep_alive(ResNet(groups=32, width=4)), image()),
    "regnet_y": _of(RegNetY),
    "densenet121": _of(DenseNet),
    "mobilenet_v2": _of(MobileNetV2),
    "mobilenet_v3": _of(MobileNetV3),
    "efficientnet_b0": _of(EfficientNet),
    "convnext": _of(ConvNeXt),
    "unet": _of(UNet),
    "waveform": lambda: (keep_alive(WaveEncoder()), (torch.randn(1, 16000),)),
}
