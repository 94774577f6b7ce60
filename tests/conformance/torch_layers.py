"""Layers with rich behaviour: recurrent ones, attention, transformers, embeddings, lazy modules."""

from __future__ import annotations

import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from harness import program
from torch.nn.utils import rnn

# The first nested tensor of a process warns.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.nested.nested_tensor([torch.ones(1)])


def sequence():
    return (torch.randn(4, 2, 3, requires_grad=True),)


def batch():
    return (torch.randn(2, 5, 8, requires_grad=True),)


def padded():
    return torch.randn(2, 5, 8), torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()


# --- recurrent layers -------------------------------------------------------------------------------------------------


@program(sequence, factory=True, backward=True)
def lstm():
    return nn.LSTM(3, 5, 2, bidirectional=True)


@program(sequence, factory=True, backward=True)
def gru_with_dropout():
    return nn.GRU(3, 5, 2, dropout=0.5)


@program(lambda: (torch.randn(2, 4, 3),), factory=True, within=torch.no_grad)
def rnn_batch_first():
    return nn.RNN(3, 5, batch_first=True, nonlinearity="relu").eval()


@program(lambda: (torch.randn(4, 3), torch.randn(1, 5)), factory=True)
def gru_of_one_sequence_with_a_state():
    return nn.GRU(3, 5)


class Stepwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 5)

    def forward(self, x):
        state = None
        outputs = []
        for step in x:
            state = self.cell(step, state)
            outputs.append(state[0])
        return torch.stack(outputs)


@program(sequence, factory=True, backward=True)
def lstm_cell_in_a_loop():
    return Stepwise()


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 5)

    def forward(self, x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        output, (hidden, _) = self.lstm(packed)
        return rnn.pad_packed_sequence(output)[0], hidden


@program(lambda: (*sequence(), torch.tensor([3, 4])), factory=True, backward=True, breaks=5)
def packed_sequence():
    return Packed()


@program(
    lambda: (rnn.pack_padded_sequence(torch.randn(4, 2, 3), torch.tensor([4, 2])),), factory=True, breaks=2
)
def packed_sequence_as_argument():
    return nn.GRU(3, 5)


@program(lambda: ([torch.randn(3, 2), torch.randn(2, 2)],))
def sequences_padded(xs):
    return rnn.pad_sequence(xs, batch_first=True, padding_value=-1.0)


# --- attention --------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.kwargs = kwargs

    def forward(self, x, padding=None):
        return self.attention(x, x, x, key_padding_mask=padding, **self.kwargs)


@program(batch, factory=True, backward=True)
def multihead_attention_in_training():
    return Attention()


@program(batch, factory=True, within=torch.no_grad)
def multihead_attention_by_the_fast_path():
    return Attention().eval()


@program(batch, factory=True, within=torch.no_grad)
def multihead_attention_without_weights():
    return Attention(need_weights=False).eval()


@program(batch, factory=True, within=torch.no_grad)
def multihead_attention_with_weights_of_each_head():
    return Attention(average_attn_weights=False).eval()


@program(padded, factory=True)
def multihead_attention_with_padding():
    return Attention(need_weights=False).eval()


@program(padded, factory=True, within=torch.no_grad)
def multihead_attention_with_padding_by_the_fast_path():
    return Attention(need_weights=False).eval()


@program(padded, factory=True, within=torch.no_grad)
def multihead_attention_with_padding_and_weights():
    return Attention().eval()


@program(batch, factory=True, within=torch.no_grad)
def multihead_attention_with_a_mask():
    return Attention(attn_mask=torch.ones(5, 5).triu(1).bool(), need_weights=False).eval()


@program(padded, factory=True, within=torch.no_grad)
def multihead_attention_with_both_masks():
    return Attention(attn_mask=torch.ones(5, 5).triu(1).bool(), need_weights=False).eval()


@program(
    lambda: (torch.randn(3, 4, 8, requires_grad=True), torch.randn(5, 4, 6)), factory=True, backward=True
)
def cross_attention_of_other_widths():
    attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, add_bias_kv=True, add_zero_attn=True)
    return lambda x, y: attention(x, y, y)


@program(lambda: tuple(torch.randn(2, 2, 5, 4, requires_grad=True) for _ in range(3)), backward=True)
def scaled_dot_product_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True) + F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.ones(5, 5).tril().bool(), scale=0.3
    )


@program(batch, factory=True, backward=True)
def encoder_layer_in_training():
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)


@program(batch, factory=True, within=torch.no_grad)
def encoder_layer_by_the_fast_path():
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu").eval()


@program(padded, factory=True, within=torch.no_grad)
def encoder_layer_with_padding():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    return lambda x, padding: layer(x, src_key_padding_mask=padding)


@program(batch, factory=True, within=torch.no_grad)
def encoder_layer_with_a_mask():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    return lambda x: layer(x, src_mask=nn.Transformer.generate_square_subsequent_mask(5))


@program(batch, factory=True, backward=True)
def encoder_in_training():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)


@program(batch, factory=True, within=torch.no_grad)
def encoder_in_evaluation():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()


@program(padded, factory=True, within=torch.no_grad, breaks=1)
def encoder_with_padding_as_a_nested_tensor():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    return lambda x, padding: encoder(x, src_key_padding_mask=padding)


def source_and_target():
    return torch.randn(5, 2, 8, requires_grad=True), torch.randn(4, 2, 8)


@program(source_and_target, factory=True, backward=True)
def transformer():
    net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    return lambda source, target: net(source, target, tgt_mask=mask, tgt_is_causal=True)


@program(source_and_target, factory=True, within=torch.no_grad)
def transformer_in_evaluation():
    net = nn.Transformer(8, 2, 1, 1, 16).eval()
    return lambda source, target: net(source, target)


@program(source_and_target, factory=True, within=torch.no_grad)
def transformer_that_looks_into_its_mask():
    net = nn.Transformer(8, 2, 1, 1, 16).eval()
    return lambda source, target: net(source, target, tgt_mask=net.generate_square_subsequent_mask(4))


@program(source_and_target, factory=True, backward=True)
def decoder():
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), 2)


# --- embeddings -------------------------------------------------------------------------------------------------------


def numbers():
    return (torch.tensor([[1, 2, 4], [4, 3, 9]]),)


@program(numbers, factory=True, backward=True)
def embedding_with_padding():
    return nn.Embedding(10, 3, padding_idx=4)


@program(numbers, factory=True, backward=True)
def embedding_scaled_by_frequency():
    return nn.Embedding(10, 3, scale_grad_by_freq=True)


@program(numbers, factory=True, backward=True)
def embedding_with_sparse_gradient():
    return nn.Embedding(10, 3, sparse=True)


@program(numbers, factory=True, backward=True, breaks=1)
def embedding_with_a_largest_norm():
    return nn.Embedding(10, 3, max_norm=0.5)


@program(numbers, factory=True, backward=True)
def embedding_bag_of_sums():
    return nn.EmbeddingBag(10, 3, mode="sum")


@program(numbers, factory=True, backward=True)
def embedding_bag_of_maxima():
    return nn.EmbeddingBag(10, 3, mode="max")


@program(lambda: (torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 4])), factory=True, backward=True)
def embedding_bag_with_offsets():
    return nn.EmbeddingBag(10, 3, mode="mean")


@program(lambda: (*numbers(), None, torch.randn(2, 3, requires_grad=True)), factory=True, backward=True)
def embedding_bag_with_weights():
    return nn.EmbeddingBag(10, 3, mode="sum")


@program(numbers, factory=True, within=torch.no_grad)
def embedding_bag_without_gradients():
    return nn.EmbeddingBag(10, 3, mode="mean")


# --- lazy modules, norms with state -----------------------------------------------------------------------------------


@program(lambda: (torch.randn(2, 3),), factory=True, breaks=4, stable=False)
def lazy_linear():
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))


@program(lambda: (torch.randn(2, 3, 6, 6),), factory=True, breaks=4, stable=False)
def lazy_convolution():
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d())


@program(lambda: (torch.randn(4, 3, requires_grad=True),), factory=True, backward=True)
def batch_norm_in_training():
    return nn.BatchNorm1d(3)


@program(
    lambda: (torch.randn(4, 3),), factory=True, breaks=1, stable=False
)  # 1 / how many batches there were
def batch_norm_with_cumulative_average():
    return nn.BatchNorm1d(3, momentum=None)


@program(lambda: (torch.randn(4, 3, 5, requires_grad=True),), factory=True, backward=True)
def instance_norm_with_statistics():
    return nn.InstanceNorm1d(3, affine=True, track_running_stats=True)


@program(lambda: (torch.randn(2, 3, 4, 4, requires_grad=True),), factory=True, backward=True)
def convolution_net():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)
    )


@program(lambda: (torch.randn(4, 5, requires_grad=True), torch.tensor([0, 2, 4, 1])), backward=True)
def losses(x, target):
    return F.cross_entropy(x, target), F.nll_loss(x.log_softmax(-1), target), F.mse_loss(x, x.detach() + 1)


@program(
    lambda: (torch.randn(6, 2, 5).log_softmax(-1).requires_grad_(),), factory=True, backward=True, breaks=1
)
def ctc_loss():
    targets, lengths, sizes = torch.tensor([[1, 2], [3, 4]]), torch.tensor([6, 6]), torch.tensor([2, 2])
    return lambda x: F.ctc_loss(x, targets, lengths, sizes)
