"""Name the checks that could not judge because an observer was off, such as with a torch that is too new."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from compose_sim.core.events.observations import Observed
from compose_sim.node.records.data import (
    Batch,
    EpochProgress,
    Join,
    LoaderInfo,
    LoaderRanks,
    RandomDraws,
    TrainingForward,
)
from compose_sim.node.records.devices_and_files import DeviceChosen, FileUse, TrainerLibraries, VariableSet
from compose_sim.node.records.gradients import DetachedInLoss, ParameterNames, SketchedStep, SketchedTensors
from compose_sim.node.records.models import (
    DdpModel,
    EvaluatedModel,
    LocalBatchNorm,
    LossValue,
    OptimizerStep,
    RepeatedPass,
    RunningStatistics,
    TensorHashes,
    TensorTable,
    UnusedParameters,
    WeightsBeforeWrapping,
)
from compose_sim.node.records.precautions import Clip, LoadedElsewhere, LoadedState, ReplicatedTensor, ShardScaling
from compose_sim.node.records.process_groups import (
    Collective,
    CollectiveFailed,
    DdpForward,
    InitProcessGroup,
    LaterCollectives,
    ProcessGroup,
    UntrackedWait,
)
from compose_sim.node.records.record import Record
from compose_sim.node.records.replays import (
    RecordedModels,
    RecordedStep,
    RecordingStopped,
    ReplayedStep,
    ReplayEnd,
    ReplayFailed,
    ReplayMisaligned,
)
from compose_sim.node.records.script import FeatureOff, RaisedAfterTraining, ScriptEnd
from compose_sim.node.records.timings import StepTimes

_Kinds = tuple[type[Record], ...]
_LOADED: _Kinds = (LoaderInfo, EpochProgress, Batch, LoaderRanks)
_REPLAYED: _Kinds = (
    RecordedModels,
    RecordedStep,
    RecordingStopped,
    ReplayedStep,
    ReplayEnd,
    ReplayFailed,
    ReplayMisaligned,
)
_COUNTED: _Kinds = (ScriptEnd, FileUse)  # they hold the number of steps and of synchronizations so far
_HASHED: _Kinds = (OptimizerStep, TensorTable, TensorHashes)

# Which records are missing or wrong if an observer is off: those that it writes, and those that hold what it counts.
DEPENDING: Mapping[str, _Kinds] = {
    "checkpoints": (LoadedState, LoadedElsewhere, StepTimes),
    "clipping": (Clip, ShardScaling),
    "collectives": (Collective, CollectiveFailed, LaterCollectives, UntrackedWait, DetachedInLoss, *_COUNTED),
    "devices": (DeviceChosen,),
    "endings": (RaisedAfterTraining,),
    "evaluations": (EvaluatedModel, WeightsBeforeWrapping),
    "files": (FileUse, VariableSet, UntrackedWait),
    "gathers": (DetachedInLoss,),
    "gradients": (UnusedParameters, OptimizerStep),
    "groups": (InitProcessGroup, ProcessGroup, TrainerLibraries),
    "horovod": (Collective, InitProcessGroup, ProcessGroup, *_COUNTED),
    "loaders": (Join, RandomDraws, TrainingForward, *_LOADED, *_REPLAYED),
    "losses": (LossValue,),
    "messages": (UntrackedWait,),
    "models": (DdpModel, DdpForward, UnusedParameters, LocalBatchNorm, *_COUNTED, *_HASHED),
    "optimizers": (SketchedTensors, SketchedStep, *_COUNTED, *_HASHED),
    "paddle": (Collective, InitProcessGroup, ProcessGroup, OptimizerStep, *_COUNTED),
    "parameter_names": (ParameterNames,),
    "randomness": (RandomDraws, TrainingForward, LoaderRanks),
    "recording": _REPLAYED,
    "repeats": (RepeatedPass,),
    "replay": _REPLAYED,
    "replaying": _REPLAYED,
    "replicated": (ReplicatedTensor,),
    "running_statistics": (RunningStatistics,),
    "sketches": (SketchedTensors, SketchedStep, WeightsBeforeWrapping, ParameterNames),
    "states": (TensorTable, TensorHashes),
    "timings": (StepTimes,),
}


def why_not_judged(observed: Observed, looked_at: Collection[type[Record]]) -> str:
    """Return why a check that looked at these kinds of records has seen too little; "" if all of them were recorded."""
    for each in observed.of(FeatureOff):
        kinds = DEPENDING.get(each.feature, ())
        if any(kind in kinds or kind.kind == each.feature for kind in looked_at):
            return f"not judged: {each.why}"
    return ""
