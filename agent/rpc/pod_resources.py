"""The kubelet's API podresources (`v1`), with the messages of KEP-5526 for pods."""

from __future__ import annotations

from typing import Final

from agent.rpc.messages import Messages

#: The messages of podresources, with those of KEP-5526 for pods.
V1: Final = Messages(
    "v1",
    {
        "ListPodResourcesRequest": {},
        "ListPodResourcesResponse": {"pod_resources": (1, "repeated PodResources")},
        "GetPodResourcesRequest": {
            "pod_name": (1, "string"),
            "pod_namespace": (2, "string"),
        },
        "GetPodResourcesResponse": {"pod_resources": (1, "PodResources")},
        "AllocatableResourcesRequest": {},
        "AllocatableResourcesResponse": {
            "devices": (1, "repeated ContainerDevices"),
            "cpu_ids": (2, "repeated int64"),
            "memory": (3, "repeated ContainerMemory"),
        },
        "PodResources": {
            "name": (1, "string"),
            "namespace": (2, "string"),
            "containers": (3, "repeated ContainerResources"),
            "cpu_ids": (4, "repeated int64"),
            "memory": (5, "repeated ContainerMemory"),
        },
        "ContainerResources": {
            "name": (1, "string"),
            "devices": (2, "repeated ContainerDevices"),
            "cpu_ids": (3, "repeated int64"),
            "memory": (4, "repeated ContainerMemory"),
            # DynamicResource as it stands on the wire: the agent passes on what the kubelet says.
            "dynamic_resources": (5, "repeated bytes"),
        },
        "ContainerMemory": {
            "memory_type": (1, "string"),
            "size": (2, "uint64"),
            "topology": (3, "TopologyInfo"),
        },
        "ContainerDevices": {
            "resource_name": (1, "string"),
            "device_ids": (2, "repeated string"),
            "topology": (3, "TopologyInfo"),
        },
        "TopologyInfo": {"nodes": (1, "repeated NUMANode")},
        "NUMANode": {"ID": (1, "int64")},
    },
)
POD_RESOURCES_LISTER: Final = "v1.PodResourcesLister"
#: The service of the API's first version, which has `List` only. Its messages are those of `v1`
#: with fewer fields, so that its clients read the same answer and skip what they do not know.
FIRST_LISTER: Final = "v1alpha1.PodResourcesLister"
