"""Metadata alone, in the form that costs least to read; pure.

In JSON most of it is who manages which of an object's fields.
"""

from __future__ import annotations

import json

from flexmarl.contracts.v1 import kubernetes_pb2
from flexmarl.controller.names import JOB_LABEL, Manifest

MAGIC = b"k8s\0"
_AS = "application/vnd.kubernetes.protobuf;as={};g=meta.k8s.io;v=v1,application/json"
ONE, MANY = _AS.format("PartialObjectMetadata"), _AS.format("PartialObjectMetadataList")
"""To accept; JSON is of refusals, and of servers that know nothing else."""


def item(data: bytes) -> Manifest:
    """Of one object what identifies it, its versions and of which job it is; JSON as it is."""
    raw = _raw(data)
    if raw is None:
        found: Manifest = json.loads(data)
        return found
    return _plain(kubernetes_pb2.MetadataItem.FromString(raw))


def items(data: bytes) -> Manifest:
    """The same of a list."""
    raw = _raw(data)
    if raw is None:
        found: Manifest = json.loads(data)
        return found
    listed = kubernetes_pb2.MetadataList.FromString(raw)
    more = listed.metadata.more
    return {"metadata": {"continue": more}, "items": [_plain(one) for one in listed.items]}


def _raw(data: bytes) -> bytes | None:
    """None: it is not protobuf."""
    if not data.startswith(MAGIC):
        return None
    return kubernetes_pb2.Envelope.FromString(data[len(MAGIC) :]).raw


def _plain(one: kubernetes_pb2.MetadataItem) -> Manifest:
    found = one.metadata
    return {
        "metadata": {
            "name": found.name,
            "namespace": found.namespace,
            "uid": found.uid,
            "resourceVersion": found.resource_version,
            "generation": found.generation,
            "labels": {JOB_LABEL: found.labels[JOB_LABEL]} if JOB_LABEL in found.labels else {},
        }
    }
