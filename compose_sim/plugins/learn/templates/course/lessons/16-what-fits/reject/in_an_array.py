"""Wrong: all activations of all samples lie in an array of NumPy, which was there before the step."""

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

room = numpy.zeros((8, 1024, 64), numpy.float32)


def train_step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> None:
    """Step along the gradient of the mean loss over all samples."""
    layers = [each for each in model if isinstance(each, nn.Linear)]
    weights = [each.weight.detach().numpy() for each in layers]
    outputs = [inputs.numpy(), *room[:3]]
    for number, layer in enumerate(layers[:-1]):
        numpy.matmul(outputs[number], weights[number].T, out=outputs[number + 1])
        outputs[number + 1] += layer.bias.detach().numpy()
        numpy.tanh(outputs[number + 1], out=outputs[number + 1])
    last = outputs[-1] @ weights[-1].T + layers[-1].bias.detach().numpy()
    gradient = (last - targets.numpy()) * numpy.float32(2 / len(inputs))
    for number in reversed(range(len(layers))):
        layers[number].weight.grad = torch.from_numpy(gradient.T @ outputs[number])
        layers[number].bias.grad = torch.from_numpy(gradient.sum(0))
        if number:
            before = room[3 + number]
            numpy.matmul(gradient, weights[number], out=before)
            before *= 1 - outputs[number] ** 2
            gradient = before
    optimizer.step()
    model(inputs[:64])
