"""Networks written out in plain PyTorch, as their papers and torchvision define them, for machines without it."""

from lampwork.bench.networks.alexnet import AlexNet
from lampwork.bench.networks.convnext import ConvNeXt
from lampwork.bench.networks.decoder import Decoder
from lampwork.bench.networks.densenet import DenseNet
from lampwork.bench.networks.efficientnet import EfficientNet
from lampwork.bench.networks.mobilenet_v2 import MobileNetV2
from lampwork.bench.networks.mobilenet_v3 import MobileNetV3
from lampwork.bench.networks.regnet import RegNetY
from lampwork.bench.networks.resnet import BasicBlock, Bottleneck, ResNet
from lampwork.bench.networks.unet import UNet
from lampwork.bench.networks.waveform import WaveEncoder

__all__ = [
    "AlexNet",
    "BasicBlock",
    "Bottleneck",
    "ConvNeXt",
    "Decoder",
    "DenseNet",
    "EfficientNet",
    "MobileNetV2",
    "MobileNetV3",
    "RegNetY",
    "ResNet",
    "UNet",
    "WaveEncoder",
]
