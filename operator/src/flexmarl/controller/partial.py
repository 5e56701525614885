"""Lists of metadata alone, in the form that costs least to read; pure.

In JSON most of each item is who manages which of its fields.
"""

from __future__ import annotations

import json

from flexmarl.contracts.v1 import kubernetes_pb2
from flexmarl.controller.names import Manifest

MAGIC = b"k8s\0"
ACCEPT = (
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,"
    "application/json"  # of refusals, and of servers that know no other
)


def page(data: bytes) -> Manifest:
    """As JSON would be read, with what identifies each item, its version and its labels."""
    if not data.startswith(MAGIC):
        found: Manifest = json.loads(data)
        return found
    envelope = kubernetes_pb2.Envelope.FromString(data[len(MAGIC) :])
    listed = kubernetes_pb2.MetadataList.FromString(envelope.raw)
    items = [
        {
            "metadata": {
                "name": one.metadata.name,
                "namespace": one.metadata.namespace,
                "uid": one.metadata.uid,
                "resourceVersion": one.metadata.resource_version,
                "labels": dict(one.metadata.labels),
            }
        }
        for one in listed.items
    ]
    return {"metadata": {"continue": listed.metadata.more}, "items": items}
