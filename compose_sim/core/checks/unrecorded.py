"""Name the checks that could not judge because an observer was off, such as with a torch that is too new."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from compose_sim.core.events.observations import Observed
from compose_sim.node.records import KINDS
from compose_sim.node.records.record import Record
from compose_sim.node.records.script import FeatureOff

_BY_NAME = {kind.__name__: kind for kind in KINDS.values()}
_LOADED = "LoaderInfo EpochProgress Batch LoaderRanks "
_REPLAYED = "RecordedModels RecordedStep RecordingStopped ReplayedStep ReplayEnd ReplayFailed ReplayMisaligned "
_COUNTED = "ScriptEnd FileUse "  # they hold the number of steps and of synchronizations so far
_HASHED = "OptimizerStep TensorTable TensorHashes "


def _kinds(names: str) -> tuple[type[Record], ...]:
    return tuple(_BY_NAME[name] for name in names.split())


# Which records are missing or wrong if an observer is off: those that it writes, and those that hold what it counts.
DEPENDING: Mapping[str, tuple[type[Record], ...]] = {
    "checkpoints": _kinds("LoadedState LoadedElsewhere StepTimes"),
    "clipping": _kinds("Clip ShardScaling"),
    "collectives": _kinds(_COUNTED + "Collective CollectiveFailed LaterCollectives UntrackedWait DetachedInLoss"),
    "devices": _kinds("DeviceChosen"),
    "endings": _kinds("RaisedAfterTraining"),
    "evaluations": _kinds("EvaluatedModel WeightsBeforeWrapping"),
    "files": _kinds("FileUse VariableSet UntrackedWait"),
    "gathers": _kinds("DetachedInLoss"),
    "gradients": _kinds("UnusedParameters OptimizerStep"),
    "groups": _kinds("InitProcessGroup ProcessGroup TrainerLibraries"),
    "horovod": _kinds(_COUNTED + "Collective InitProcessGroup ProcessGroup"),
    "loaders": _kinds(_LOADED + _REPLAYED + "Join RandomDraws TrainingForward"),
    "losses": _kinds("LossValue"),
    "messages": _kinds("UntrackedWait"),
    "models": _kinds(_COUNTED + _HASHED + "DdpModel DdpForward UnusedParameters LocalBatchNorm"),
    "optimizers": _kinds(_COUNTED + _HASHED + "SketchedTensors SketchedStep"),
    "paddle": _kinds(_COUNTED + "Collective InitProcessGroup ProcessGroup OptimizerStep"),
    "parameter_names": _kinds("ParameterNames"),
    "randomness": _kinds("RandomDraws TrainingForward LoaderRanks"),
    "recording": _kinds(_REPLAYED),
    "repeats": _kinds("RepeatedPass"),
    "replay": _kinds(_REPLAYED),
    "replaying": _kinds(_REPLAYED),
    "replicated": _kinds("ReplicatedTensor"),
    "running_statistics": _kinds("RunningStatistics"),
    "sketches": _kinds("SketchedTensors SketchedStep WeightsBeforeWrapping ParameterNames"),
    "states": _kinds("TensorTable TensorHashes"),
    "timings": _kinds("StepTimes"),
}


def why_not_judged(observed: Observed, looked_at: Collection[type[Record]]) -> str:
    """Return why a check that looked at these kinds of records has seen too little; "" if all of them were recorded."""
    for each in observed.of(FeatureOff):
        kinds = DEPENDING.get(each.feature, ())
        if any(kind in kinds or kind.kind == each.feature for kind in looked_at):
            return f"not judged: {each.why}"
    return ""
