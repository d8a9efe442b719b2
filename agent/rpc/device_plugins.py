"""Two APIs between the kubelet and device plugins: `v1beta1` and `pluginregistration/v1`.

A plugin registers at the kubelet's socket, or serves a registration that the kubelet's plugin
watcher asks for.
"""

from __future__ import annotations

from typing import Final

from agent.rpc.messages import MAP, Messages

#: The version that a plugin names when it registers; the kubelet supports no other.
VERSION: Final = "v1beta1"
#: The messages of device plugins and of their registration.
V1BETA1: Final = Messages(
    VERSION,
    {
        "Empty": {},
        "DevicePluginOptions": {
            "pre_start_required": (1, "bool"),
            "get_preferred_allocation_available": (2, "bool"),
        },
        "RegisterRequest": {
            "version": (1, "string"),
            "endpoint": (2, "string"),
            "resource_name": (3, "string"),
            "options": (4, "DevicePluginOptions"),
        },
        "ListAndWatchResponse": {"devices": (1, "repeated Device")},
        "Device": {
            "ID": (1, "string"),
            "health": (2, "string"),
            "topology": (3, "TopologyInfo"),
        },
        "TopologyInfo": {"nodes": (1, "repeated NUMANode")},
        "NUMANode": {"ID": (1, "int64")},
        "PreferredAllocationRequest": {
            "container_requests": (1, "repeated ContainerPreferredAllocationRequest"),
        },
        "ContainerPreferredAllocationRequest": {
            "available_deviceIDs": (1, "repeated string"),
            "must_include_deviceIDs": (2, "repeated string"),
            "allocation_size": (3, "int32"),
        },
        "PreferredAllocationResponse": {
            "container_responses": (1, "repeated ContainerPreferredAllocationResponse"),
        },
        "ContainerPreferredAllocationResponse": {"deviceIDs": (1, "repeated string")},
        "AllocateRequest": {"container_requests": (1, "repeated ContainerAllocateRequest")},
        "ContainerAllocateRequest": {"devices_ids": (1, "repeated string")},
        "AllocateResponse": {"container_responses": (1, "repeated ContainerAllocateResponse")},
        "ContainerAllocateResponse": {
            "envs": (1, MAP),
            "mounts": (2, "repeated Mount"),
            "devices": (3, "repeated DeviceSpec"),
            "annotations": (4, MAP),
            "cdi_devices": (5, "repeated CDIDevice"),
        },
        "Mount": {
            "container_path": (1, "string"),
            "host_path": (2, "string"),
            "read_only": (3, "bool"),
        },
        "DeviceSpec": {
            "container_path": (1, "string"),
            "host_path": (2, "string"),
            "permissions": (3, "string"),
        },
        "CDIDevice": {"name": (1, "string")},
        "PreStartContainerRequest": {"devices_ids": (1, "repeated string")},
        "PreStartContainerResponse": {},
    },
)
#: `pluginregistration/v1`, which plugins serve in the directory of the kubelet's plugin watcher.
PLUGIN_REGISTRATION: Final = Messages(
    "pluginregistration",
    {
        "InfoRequest": {},
        "PluginInfo": {
            "type": (1, "string"),
            "name": (2, "string"),
            "endpoint": (3, "string"),
            "supported_versions": (4, "repeated string"),
        },
        "RegistrationStatus": {"plugin_registered": (1, "bool"), "error": (2, "string")},
        "RegistrationStatusResponse": {},
    },
)
#: The service of a plugin for the plugin watcher.
PLUGIN_WATCHER: Final = "pluginregistration.Registration"
#: The service of the kubelet, with which plugins register.
REGISTRATION: Final = "v1beta1.Registration"
#: The service of a plugin.
DEVICE_PLUGIN: Final = "v1beta1.DevicePlugin"
#: The socket of the kubelet in the directory of plugins; the name is fixed in most plugins.
KUBELET_SOCKET: Final = "kubelet.sock"
