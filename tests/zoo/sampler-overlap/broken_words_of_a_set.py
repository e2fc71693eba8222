"""The words are numbered in the order of a set, which is another one in each process."""

# expects: sampler-overlap
# options: --nproc-per-node 1

import random

import torch
import torch.distributed as dist
from torch import nn

TEXTS = {
    "rain": "will it rain or snow tomorrow in oslo take an umbrella",
    "song": "play the next song louder and skip the slow ballad",
    "train": "book the cheap night train from rome to the coast",
}


def sentences(count):
    draw = random.Random(3)
    for _ in range(count):
        topic = draw.choice(sorted(TEXTS))
        yield draw.sample(TEXTS[topic].split(), 5), sorted(TEXTS).index(topic)


class Words:
    def __init__(self, texts):
        self.numbers = {word: at for at, word in enumerate({word for text, _ in texts for word in text}, start=1)}

    def encode(self, text):
        return [self.numbers[word] for word in text]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    texts = list(sentences(480))
    words = Words(texts)
    x = torch.tensor([words.encode(text) for text, _ in texts])
    y = torch.tensor([topic for _, topic in texts])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(len(words.numbers) + 1, 16), nn.Flatten(), nn.Linear(80, 3))
    model = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(model.parameters(), 1e-2)
    for epoch in range(2):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))[rank::world]
        for rows in order.split(24):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
