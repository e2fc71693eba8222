"""detectron2's idiom: padded images of several sizes, SyncBatchNorm, losses reduced by name, results gathered as objects."""

import functools
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("NCCL")
device = torch.device("cuda", torch.cuda.current_device())


@functools.lru_cache
def global_gloo_group():
    return dist.new_group(backend="gloo")


class Instances:
    def __init__(self, boxes, classes):
        self.boxes, self.classes = boxes, classes

    def to(self, *args, **kwargs):
        return Instances(self.boxes.to(*args, **kwargs), self.classes.to(*args, **kwargs))


def pad_images(images, divisor=8):
    sizes = torch.stack([torch.as_tensor(image.shape[-2:]) for image in images])
    height, width = ((sizes.max(0).values + divisor - 1).div(divisor, rounding_mode="floor") * divisor).tolist()
    batch = images[0].new_full((len(images), 3, height, width), 0.0)
    for image, padded in zip(images, batch, strict=True):
        padded[..., : image.shape[-2], : image.shape[-1]].copy_(image)
    return batch.contiguous()


def pairwise_iou(left, right):
    corner = torch.min(left[:, None, 2:], right[:, 2:]) - torch.max(left[:, None, :2], right[:, :2])
    shared = corner.clamp_(min=0).prod(dim=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(dim=1) for boxes in (left, right)]
    return torch.where(shared > 0, shared / (areas[0][:, None] + areas[1] - shared), shared.new_zeros(1))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("pixel_mean", torch.tensor([0.4, 0.5, 0.6]).view(-1, 1, 1), False)
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=4, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        )  # fmt: skip
        self.scores, self.deltas = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 4, 1)

    @property
    def device(self):
        return self.pixel_mean.device

    def forward(self, inputs):
        images = pad_images([entry["image"].to(self.device, non_blocking=True) - self.pixel_mean for entry in inputs])
        features = self.backbone(images)
        ys, xs = torch.meshgrid(
            *(torch.arange(n, device=self.device) * 8.0 for n in features.shape[-2:]), indexing="ij"
        )
        anchors = torch.stack((xs, ys, xs + 12, ys + 12), dim=-1).view(-1, 4)
        scores, deltas = (f(features).permute(0, 2, 3, 1).flatten(1, 2) for f in (self.scores, self.deltas))
        if not self.training:
            return [self.detect(*each, anchors) for each in zip(scores, deltas, strict=True)]
        targets = [entry["instances"].to(self.device) for entry in inputs]
        labels, boxes = zip(*(self.match(anchors, target) for target in targets), strict=True)
        labels, boxes = torch.stack(labels), torch.stack(boxes)
        positive = torch.nonzero(labels >= 0, as_tuple=True)
        normalizer = max(1, positive[0].numel())
        wanted = F.one_hot(labels + 1, num_classes=5)[..., 1:].to(scores.dtype)
        probability = scores.sigmoid()
        focal = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
        focal = focal * (probability - wanted).abs() ** 2
        regression = F.smooth_l1_loss(deltas[positive], (boxes - anchors)[positive] / 12, beta=0.1, reduction="sum")
        return {"loss_cls": focal.sum() / normalizer, "loss_box_reg": regression / normalizer}

    @torch.no_grad()
    def match(self, anchors, target):
        values, matches = pairwise_iou(target.boxes, anchors).max(dim=0)
        labels = target.classes[matches].masked_fill(values < 0.2, -1)
        return labels, target.boxes[matches]

    def detect(self, scores, deltas, anchors, top=8):
        values, order = scores.sigmoid().flatten().topk(top)
        boxes = anchors[order // 4] + deltas[order // 4] * 12
        overlaps, keep = pairwise_iou(boxes, boxes).triu(1) > 0.5, []
        for index in range(top):  # non-maximum suppression
            if not any(overlaps[kept, index] for kept in keep):
                keep.append(index)
        return {"boxes": boxes[keep], "scores": values[keep], "classes": (order % 4)[keep]}


torch.manual_seed(0)
model = nn.SyncBatchNorm.convert_sync_batchnorm(Detector().to(device))
model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index], broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
draws = torch.Generator().manual_seed(1 + dist.get_rank())


def draw(count):
    for index in range(count):
        height, width = torch.randint(24, 41, (2,), generator=draws).tolist()
        corners = torch.rand(2 + index, 2, generator=draws) * 16
        boxes = torch.cat([corners, corners + 10], dim=1)
        classes = torch.randint(4, (2 + index,), generator=draws)
        yield {"image": torch.rand(3, height, width, generator=draws), "instances": Instances(boxes, classes)}


for iteration in range(4):
    start = time.perf_counter()
    data = list(draw(2))
    metrics = {"data_time": time.perf_counter() - start}
    loss_dict = model(data)
    optimizer.zero_grad()
    sum(loss_dict.values()).backward()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        metrics |= {name: value.detach().cpu().item() for name, value in loss_dict.items()}
    optimizer.step()
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, metrics, group=global_gloo_group())
    values = torch.stack([loss_dict[name].detach() for name in sorted(loss_dict)])
    dist.reduce(values, dst=0)
    if dist.get_rank() == 0:
        peak = torch.cuda.max_memory_allocated() / 1024.0**2
        total = values.sum().item() / dist.get_world_size()
        assert abs(total - sum(sum(m[name] for name in loss_dict) for m in every) / len(every)) < 1e-4
        assert peak > 0
        print(f"iter {iteration} loss {total:.6f}", flush=True)
model.eval()
with torch.no_grad():
    found = [{name: value.to("cpu") for name, value in image.items()} for image in model(list(draw(2)))]
gathered = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
dist.gather_object(found, gathered, dst=0)
torch.cuda.synchronize()
if dist.get_rank() == 0:
    scores = torch.cat([image["scores"] for images in gathered for image in images])
    assert len(gathered) == dist.get_world_size()
    assert scores.device.type == "cpu"
    print(f"evaluated {len(gathered) * 2} images, loss {1 - scores.max().item():.6f}", flush=True)
dist.destroy_process_group()
