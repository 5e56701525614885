"""The Trainer service: translate, delegate to the slot, translate back."""

from typing import Any

import grpc.aio

from flexmarl.contracts.v1 import trainer_pb2 as pb
from flexmarl.contracts.v1 import trainer_pb2_grpc as pb_grpc
from flexmarl.runtime.grpc import Register
from flexmarl.trainer.slot import Slot


class TrainerService(pb_grpc.TrainerServicer):
    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    async def Bind(self, request: pb.BindRequest, context: Any) -> pb.BindResponse:
        weights = await self._slot.bind(
            request.policy,
            request.epoch,
            request.version,
            request.checkpoint,
            discard=request.discard,
            kept=request.kept,
            checksum=request.checksum,
        )
        return pb.BindResponse(weights=weights)

    async def Unbind(self, request: pb.UnbindRequest, context: Any) -> pb.UnbindResponse:
        await self._slot.unbind(request.policy, request.epoch)
        return pb.UnbindResponse()

    async def TrainStep(self, request: pb.TrainStepRequest, context: Any) -> pb.TrainStepResponse:
        trained = await self._slot.train_step(
            request.policy, request.epoch, request.step, request.groups
        )
        return pb.TrainStepResponse(
            weights=trained.weights, updated=trained.updated, metrics=trained.metrics
        )

    async def SaveCheckpoint(
        self, request: pb.SaveCheckpointRequest, context: Any
    ) -> pb.SaveCheckpointResponse:
        version, files = await self._slot.save_checkpoint(
            request.policy, request.epoch, request.directory
        )
        return pb.SaveCheckpointResponse(version=version, files=files)


def register(slot: Slot) -> Register:
    """For `runtime.grpc.serving`."""
    service = TrainerService(slot)

    def add(server: grpc.aio.Server) -> None:
        pb_grpc.add_TrainerServicer_to_server(service, server)

    return add
